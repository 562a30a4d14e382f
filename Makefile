# Every target makes its own environment in .venv; `make PYTHON=python3.12 test`
# chooses the Python to make it with.
PYTHON ?= python3
VENV := .venv
BIN := $(abspath $(VENV))/bin
CHECK := build/check
UV := build/matrix/tools/bin/uv
# One environment each. MXNet's last release ends at Python 3.11.
PEERS := $(patsubst benchmarks/peer_programs/environments/%.txt,build/peers/%/.made,\
	$(wildcard benchmarks/peer_programs/environments/*.txt))
PEERS_PYTHON ?= python3.11
# Flower's own protobuf and rich, in front of the packages of $(VENV).
FLOWER := build/flower
# Libraries around Keras, in front of those packages; TensorFlow, Keras and NumPy are theirs.
ECOSYSTEM := build/ecosystem
PACKAGES := import sysconfig; folder = sysconfig.get_path("purelib")
BEHIND := $(PACKAGES); print(f"import site; site.addsitedir({folder!r})")
RELEASE := build/release
# What pyproject.toml has for developers, with the extras that tests import.
DEV := --editable '.[all,examples,estimator]' --group dev
# The versions that were tried together; `make lock` renews them.
# Python compiles what it imports: all of TensorFlow's modules take half a minute.
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
# A commit has an order of tests of its own: `make test SEED=7` tries another one.
SEED ?= $(shell printf %d 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0))
STEPS := $(BIN)/python -m tests.check --seed=$(SEED)
# `make test-all ENGINES=--all-engines` fails where an engine is not installed.
ENGINES :=
# Of the repository's files, for the links of the README and the metadata of a package index.
ADDRESS :=

.DELETE_ON_ERROR:
.PHONY: help mnist test test-quick test-all check doctests lock docs \
	docs-private-api features mutants sweeps scripts matrix lint types wheel dist peers flower \
	ecosystem clean

help:
	@echo "make mnist   train the MNIST CNN on 2 ps, 2 workers and a chief, on this machine"
	@echo "make test    run the gate: the tests that CI runs, a few minutes"
	@echo "make test-quick  those of the gate that need no cluster"
	@echo "make test-all  run all tests, part by part; PART=recovery for one part"
	@echo "make check   lint, types, docs, and the gate on the built wheel: what CI runs"
	@echo "make features  the table of features, all of it, under every strategy"
	@echo "make mutants  break the code in a dozen ways: a test must notice each"
	@echo "make sweeps  every case that the parts leave out: tests/parts.py"
	@echo "make scripts  the patterns of real Keras scripts under every strategy"
	@echo "make dist    build the wheel and the source distribution of a release into dist/"
	@echo "make docs    build the site into build/site; broken links fail"
	@echo "make docs-private-api  the counts and the rooms in docs/private-api.md"
	@echo "make matrix  the feature tests on each TensorFlow and each Python; TF=2.18 for one"
	@echo "make peers   environments with MXNet, PaddlePaddle, PyTorch, Ray and TFRA, for benchmarks/"
	@echo "make flower  the tests of federated clients on Flower, in an environment with it"
	@echo "make ecosystem  the libraries of docs/ecosystem.md, in an environment with them"
	@echo "make lock    renew constraints.txt, the versions of all packages"
	@echo "make clean   remove what these made"

mnist: $(VENV)/.examples
	TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/python -m launch.local --num_ps=2 --num_workers=2 \
		examples/mnist_cnn.py --strategy=parameter_server --min_accuracy=0.9

test: $(VENV)/.dev
	$(STEPS) gate

test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --gate -m "not cluster"

test-all: $(VENV)/.dev
	$(STEPS) $(ENGINES) $(PART)

check: $(VENV)/.dev
	$(STEPS) wheel lint types docs doctests gate

doctests:
	cd $(CHECK) && PYTHONPATH=site $(BIN)/python -m pytest -c /dev/null --rootdir=. -p no:randomly \
		--doctest-modules --ignore-glob='*/__main__.py' --ignore-glob='*/federated/flower/*' \
		site/tf_config site/launch site/tfdist

features: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/features \
		tests/features_in_step/test_features_synchronous.py tests/reader/test_whole_batch.py
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/features --strategy=bounded
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/features --strategy=rounds

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants

sweeps: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "thorough and not namespaces"
	$(BIN)/python -m pytest -m "thorough and namespaces"

scripts: $(VENV)/.dev
	$(BIN)/python -m pytest tests/scripts_runner

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-private-api: $(VENV)/.dev
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tests.private_api --write

# Needs no TensorFlow of its own: each run makes an environment.
matrix: $(UV)
	$(PYTHON) -m tests.matrix --uv=$(UV) $(TF:%=--tensorflow=%) $(MATRIX)

peers: $(PEERS) $(VENV)/.dev

build/peers/%/.made: benchmarks/peer_programs/environments/%.txt
	rm -rf $(@D)
	$(PEERS_PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --requirement $<
	touch $@

flower: $(FLOWER)/.made
	$(FLOWER)/bin/python -c 'import flwr, ray'
	PATH=$(abspath $(FLOWER))/bin:$$PATH python -m pytest tests/federated/test_federated_flower*.py

# One copy of TensorFlow is enough: what is not here is found in $(VENV).
$(FLOWER)/.made: setup.cfg | $(VENV)/.dev
	rm -rf $(FLOWER)
	$(BIN)/python -m venv $(FLOWER)
	$(FLOWER)/bin/pip install --quiet 'flwr[simulation]>=1.41'
	$(BIN)/python -c '$(BEHIND)' > $$($(FLOWER)/bin/python -c '$(PACKAGES); print(folder)')/behind.pth
	touch $@

ecosystem: $(ECOSYSTEM)/.made
	PATH=$(abspath $(ECOSYSTEM))/bin:$$PATH python -m tests.check --seed=$(SEED) ecosystem

# Behind it first, so that pip installs no second TensorFlow.
$(ECOSYSTEM)/.made: tests/ecosystem/requirements.txt constraints.txt | $(VENV)/.dev
	rm -rf $(ECOSYSTEM)
	$(BIN)/python -m venv $(ECOSYSTEM)
	$(BIN)/python -c '$(BEHIND)' > $$($(ECOSYSTEM)/bin/python -c '$(PACKAGES); print(folder)')/behind.pth
	grep -E '^(keras|numpy|tensorflow)==' constraints.txt > $(ECOSYSTEM)/same.txt
	$(ECOSYSTEM)/bin/pip install --quiet --constraint $(ECOSYSTEM)/same.txt \
		--requirement tests/ecosystem/requirements.txt
	touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.first_lines

types: $(VENV)/.dev
	$(BIN)/mypy

wheel: $(VENV)/.dev
	rm -rf $(CHECK) build/lib
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir $(CHECK) .
	$(BIN)/pip install --quiet --no-deps --target $(CHECK)/site $(CHECK)/*.whl

# Of the last commit, so that nothing is released that git does not know.
dist: $(RELEASE)/.made
	rm -rf dist $(RELEASE)/source
	mkdir $(RELEASE)/source
	git archive HEAD | tar -x -C $(RELEASE)/source
	$(RELEASE)/bin/python docs/site_readme.py $(RELEASE)/source $(ADDRESS)
	$(RELEASE)/bin/python -m build --outdir dist $(RELEASE)/source
	$(RELEASE)/bin/twine check --strict dist/*

$(RELEASE)/.made:
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet build twine 'readme_renderer[md]'
	touch $@

$(VENV)/.examples: setup.cfg pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) --editable '.[examples]'
	touch $@

$(VENV)/.dev: setup.cfg pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) $(DEV)
	touch $@ $(VENV)/.examples

# Of this Python alone: another one may have no such version.
lock: $(VENV)/.dev
	$(BIN)/pip install --quiet --upgrade --upgrade-strategy eager $(DEV)
	version=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	$(BIN)/pip freeze --exclude-editable | sed "s/$$/ ; python_version == \"$$version\"/" > constraints.txt

$(UV):
	$(PYTHON) -m venv build/matrix/tools
	build/matrix/tools/bin/pip install --quiet uv

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "tfdist needs Python 3.10 or newer, and $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make an environment: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

clean:
	rm -rf $(VENV) build dist logs *.egg-info
