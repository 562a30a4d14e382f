"""What TLS between the hosts costs: launch.ssh --secure=tls against --secure=private.

    python benchmarks/secure.py --json=benchmarks/measured/secure.json
    python benchmarks/secure_report.py            # into docs/security.md

Three hosts, which are network namespaces: ps:0 on the first, worker:0 on the second, the
chief on the third. Two clusters, one of each kind, run at the same time, and take turns:
one measures while the other waits. It needs root, iproute2 and stunnel.
"""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import netns

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ("h0", "h1", "h2")
KINDS = ("private", "tls")
MEASURES = ("fit", "read", "trip")  # steps/s, MB/s, ms
_SIZE = 64_000_000  # bytes
_TIMEOUT = 300.0  # seconds


class Cluster:
    """One cluster, whose chief measures when it is asked.

    Args:
        kind: The value of `--secure`, and after a space maybe further flags.
        network: The hosts.
        directory: A directory of its own.
        steps: Of `fit`, per measurement.
    """

    def __init__(
        self, kind: str, network: netns.Network, directory: Path, steps: int
    ) -> None:
        self.kind = kind
        self.directory = directory
        self._number = 0
        hosts = {
            name: (network.address(name), network.command(name, [])) for name in HOSTS
        }
        stand_in = [sys.executable, str(ROOT / "benchmarks" / "namespace_ssh.py")]
        command = [
            *(sys.executable, "-m", "launch.ssh", *f"--secure={kind}".split()),
            f"--ssh={shlex.join([*stand_in, json.dumps(hosts)])}",
            *(f"--hosts={','.join(HOSTS)}", "--num_ps=1", "--num_workers=1"),
            *(f"--log_dir={directory}/logs", f"--startup_timeout={_TIMEOUT:g}"),
            *(f"--env=PYTHONPATH={ROOT}", "--env=TF_CPP_MIN_LOG_LEVEL=3"),
            *(str(ROOT / "benchmarks" / "secure_chief.py"), str(directory)),
            *(str(steps), str(_SIZE)),
        ]
        with (directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def wait_for(self, name: str) -> Path:
        """Waits for a file of the chief.

        Raises:
            RuntimeError: If the cluster ends, or takes too long.
        """
        path, deadline = self.directory / name, time.monotonic() + _TIMEOUT
        while not path.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.directory / "output").read_text()
                raise RuntimeError(f"no {name} of the cluster {self.kind}:\n{said}")
            time.sleep(0.02)
        return path

    def measure(self, what: str) -> float:
        """Returns what the chief measures now."""
        (self.directory / "part-of-go").write_text(what)
        os.replace(self.directory / "part-of-go", self.directory / f"go-{self._number}")
        found = self.wait_for(f"done-{self._number}").read_text()
        self._number += 1
        return float(found)

    def end(self) -> None:
        """Ends the cluster."""
        (self.directory / "over").touch()
        try:
            self._process.wait(_TIMEOUT)
        finally:
            self._process.kill()


@contextlib.contextmanager
def clusters(steps: int) -> Iterator[Mapping[str, Cluster]]:
    """Starts a cluster of each kind, and ends them."""
    with (
        netns.network(HOSTS) as network,
        tempfile.TemporaryDirectory() as directory,
        contextlib.ExitStack() as stack,
    ):
        found = {}
        for kind in KINDS:
            own = Path(directory, str(len(found)))
            own.mkdir()
            found[kind] = Cluster(kind, network, own, steps)
            stack.callback(found[kind].end)
            found[kind].wait_for("ready")
        yield found


def main() -> None:
    """Prints every round, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100, help="of fit, per round")
    parser.add_argument("--json", type=Path, help="where to keep the rounds")
    values = parser.parse_args()
    rounds = []
    with clusters(values.steps) as running:
        for number in range(values.rounds):
            # Whoever is first finds the machine as the other left it.
            order = KINDS if number % 2 else KINDS[::-1]
            rounds.append(
                {
                    what: {kind: running[kind].measure(what) for kind in order}
                    for what in MEASURES
                }
            )
            print(json.dumps(rounds[-1]), flush=True)
    if values.json:
        load = os.getloadavg()[1]
        kept = {"rounds": rounds, "load": load, "cores": os.cpu_count()}
        values.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
