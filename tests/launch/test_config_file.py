"""Settings in a file: what --save_config writes, --config reads."""

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import kubernetes, local, ray, slurm, ssh
from launch.flags import command_line, config_file
from launch.flags.config_file import NOT_SETTINGS, ConfigError
from launch.flags.errors import UsageError

COMMANDS = {
    **{"local": local, "ssh": ssh, "slurm": slurm, "kubernetes": kubernetes},
    "ray": ray,
}
FILE = "tfdist.toml"
SAMPLES = {"int": ["3"], "float": ["2.5"], "bool": ["true"], "env": ["HOME", "PATH"]}
# No script of this test's is read.
SCRIPT = ["-m", "no.module", "--rate=1e-3", "two words", '"', "\\", "ü", "--"]


pytestmark = pytest.mark.usefixtures("here")


def parse(name, *args):
    command = COMMANDS[name]
    define = getattr(command, "define_flags", None) or command._define_flags
    return command_line.parse([f"launch.{name}", *args], define(), command.__doc__)


def read(text, *args, name="local"):
    with open(FILE, "w") as file:
        file.write(text)
    return parse(name, f"--config={FILE}", *args)


def settings_of(values):
    found = values.flag_values_dict()
    return {name: found[name] for name in found if name not in NOT_SETTINGS}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_every_engine_comes_back(name):
    given_flags = []
    defaults, _ = parse(name, *SCRIPT)
    for flag in {defaults[each].name: defaults[each] for each in defaults}.values():
        several = flag.flag_type().startswith("multi ")
        samples = SAMPLES.get(flag.name) or SAMPLES.get(flag.flag_type())
        choices = getattr(flag.parser, "enum_values", None)
        samples = samples or choices or (["a,b", 'c = "d" #'] if several else ['a,b "'])
        if isinstance(flag.value, bool):
            samples = [str(not flag.value)]
        if flag.name not in NOT_SETTINGS | {"module"}:
            given_flags += [
                f"--{flag.name}={each}" for each in samples[: 1 + 1 * several]
            ]
    saved, program = parse(name, *given_flags, f"--save_config={FILE}", *SCRIPT)
    found, again = parse(name, f"--config={FILE}")
    assert again == program
    assert settings_of(found) == settings_of(saved)
    assert all(found[each].present for each in {*found} - NOT_SETTINGS)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
def test_every_text_comes_back(texts):
    values = local.define_flags()
    for name in ("log_dir", "timeline"):
        values[name].parse("".join(texts))
    text = config_file.text_of(values, ["train.py", *texts])
    found = config_file.settings_in(text, FILE, "local", values)
    assert found["log_dir"] == "".join(texts)
    assert found["args"] == texts


def test_the_command_line_wins():
    text = """
        num_workers = 3
        max_restarts = 1
        env = ["HOME"]
        module = true
        script = "no.module"
        args = ["--epochs=1"]
        [ssh]
        max_restarts = 2
        hosts = "a"
    """
    values, program = read(text, "--num_workers=4", "--env=PATH", name="ssh")
    assert (values.num_workers, values.max_restarts, values.hosts) == (4, 2, "a")
    assert values.env == ["PATH"]
    assert program.argv == ("-m", "no.module", "--epochs=1")
    # What a table says is for its command alone; another script has other arguments.
    with pytest.raises(ConfigError):
        read(text)
    values, program = read(text.replace("env =", "import ="), "other.py", "--x")
    assert (values.num_workers, values.max_restarts) == (3, 1)
    assert program.argv == ("other.py", "--x")


def test_slurm_runs_what_the_file_says(capsys):
    options = 'sbatch = ["--exclusive", "--comment=a"]\n[slurm]\npartition = "p"\n'
    script = 'num_ps = 0\nscript = "no.py"\nargs = ["a b"]\n'
    with open(FILE, "w") as file:
        file.write(script + options)
    arguments = [f"--config={FILE}", "--dry_run", "--detach", "--nochief"]
    assert slurm.main(["launch.slurm", *arguments]) == 0
    text = capsys.readouterr().out
    command = shlex.split(text.splitlines()[-1])
    assert {"--num_ps=0", "--partition=p", "--nochief", "--comment=a"} < {
        word.removeprefix("--sbatch=") for word in command
    }
    assert command[-2:] == ["no.py", "a b"]
    # The job may start when the file has changed.
    assert not [word for word in command if re.match("--(config|detach|dry)", word)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_wrkers = 2", f"{FILE}: there is no flag --num_wrkers. Did you"),
        ("partition = 'p'", "belongs to a table of their name, such as [slurm]"),
        ("[slrum]", "[slrum] is not the name of a command. Did you mean 'slurm'?"),
        ("[local]\nhosts = 'a'", "there is no flag --hosts"),
        ("m = true", "there is no flag --m."),
        ("dry_run = true", "'dry_run' is for the command line alone: remove it"),
        ("num_workers = '2'", 'num_workers must be an integer; received "2"'),
        ("num_workers = true", "num_workers must be an integer; received true"),
        ("num_workers = 2.0", "num_workers must be an integer; received 2.0"),
        ("num_workers = -1", "must be a non-negative integer; received '-1'"),
        ("chief = 1", "chief must be true or false; received 1"),
        ("log_dir = 07:00:00", 'must be a text in quotes, such as "a"; received 07:0'),
        ('log_dir = "\\u0000"', "log_dir must be a text"),
        ("import = 'a'", 'import must be a list of texts, such as ["a", "b"]'),
        ("args = [1]", "args must be a list of texts"),
        ("args = ['a']", "args needs the script that gets them"),
        ("network = 'opn'", "--network must be one of auto, loopback, private, open"),
        ("num_ps =\n", "is not valid TOML: Invalid value (at line 1, column 9)"),
        ("num_ps = 1", "no script given"),
        (None, f"--config={FILE} cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_file_is_refused_in_words(text, message):
    with pytest.raises((ConfigError, UsageError), match=re.escape(message)):
        parse("local", f"--config={FILE}") if text is None else read(text)


@pytest.mark.parametrize(
    "argument",
    [
        *("--api_key=x", "--api-key", "--hf_token=x", "DB_PASSWORD=x", "--secret"),
        *('{"env_vars": {"AWS_SECRET_ACCESS_KEY": "x"}}', "redis://me:x@host/0"),
    ],
)
def test_no_secret_is_written(argument):
    with pytest.raises(ConfigError, match="--save_config writes no secrets"):
        parse("local", f"--save_config={FILE}", "no.py", argument, "y")


def test_a_variable_is_written_without_its_value(capsys):
    parse("ssh", "--env=A=z", "--env=HOME", f"--save_config={FILE}", "no.py")
    assert capsys.readouterr().err == f"saved to {FILE}, without the values of A\n"
    assert parse("ssh", f"--config={FILE}")[0].env == ["A", "HOME"]


@pytest.mark.parametrize(
    "argument",
    ["--max_tokens=9", "--pad_token=[P]", "--password_file=/run/x", "/a/secret"],
)
def test_a_name_that_is_like_a_secret_is_written(argument):
    _, program = parse("local", f"--save_config={FILE}", "no.py", argument)
    assert parse("local", f"--config={FILE}")[1] == program
