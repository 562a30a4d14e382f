"""Runs a cluster on hosts that ssh can reach.

    python -m launch.ssh --hosts=h0,h1,h2 --num_ps=2 --num_workers=2 train.py --epochs=5

Every task is started through an ssh connection of its own, with the user's keys, agent
and configuration, and ends with it. The ps run on different hosts. Every host needs the
script, the data and the same Python environment at the same paths. The job ends, and
lost tasks are restarted, as with launch.local. Flags after the script belong to the
script.
"""

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from launch.engines import hosts as host_lists
from launch.engines import record, ssh
from launch.engines.engine import EngineError
from launch.engines.hosts import Host
from launch.engines.layout import Layout, Surroundings, record_of
from launch.engines.planner import HostPlanner
from launch.engines.ssh import SshJob
from launch.flags import command_line, engine_flags
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.job.job import Job
from launch.job.script_source import kind_of_script
from launch.secure import mode
from launch.supervise.processes import check_platform

_MOST_TASKS = 1000  # of a host
_WITHOUT_TLS = """\
# what each task runs; python -m launch.ssh also closes TensorFlow's ports and connects the
# hosts with stunnel. Started by hand, these servers would be open to everyone, and could
# not reach each other: --secure=private --dry_run prints a cluster to start by hand"""


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns the job's exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    check_platform()
    engine_flags.check(values, ["checkpoint_dir", "python", "work_dir"])
    engine_flags.check_work_dir(values.work_dir)
    engine_flags.check_ssh(values.ssh)
    name = record.name_of(values.name, program.script)
    hosts = _hosts(values)
    kind = kind_of_script(program, values.program, values.num_ps)
    planner = engine_flags.planner(values, program, kind, first_port=values.first_port)

    def without(lost: Collection[str]) -> Job:
        rest = [each for each in hosts if each.name not in lost]
        if not rest:
            raise EngineError("no host is left")
        layout = _layout(values, planner, rest)
        return planner.on_hosts(layout, _surroundings(values, rest))

    if values.dry_run:
        layout = _layout(values, planner, hosts)
        text = ssh.render(planner.example(layout, _surroundings(values, hosts)))
        if values.first_port is None:
            print("# examples of ports: each host chooses its own when the job starts")
        if planner.protection == mode.TLS:
            print(_WITHOUT_TLS)
        print(text)
        return 0
    job = SshJob(without(()), without)
    return engine_flags.start(values, ssh, job, record_of(job.first, name, "ssh"))


def _layout(values: Flags, planner: HostPlanner, hosts: Sequence[Host]) -> Layout:
    counts = engine_flags.counts(values, planner.kind, _MOST_TASKS * len(hosts))
    layout = Layout.of(hosts, ssh.addresses(values.ssh, hosts), counts)
    engine_flags.check_first_port(layout, planner)
    return layout


def _hosts(values: Flags) -> tuple[Host, ...]:
    if (values.hosts is None) == (values.hostfile is None):
        raise UsageError(
            "say on which hosts the tasks run: --hosts=h0,h1 or --hostfile=FILE, "
            + ("one of them" if values.hosts is None else "and not both")
        )
    if values.hosts is not None:
        return host_lists.parse_list(values.hosts)
    try:
        text = Path(values.hostfile).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--hostfile={values.hostfile!r}: {error.strerror}") from None
    except ValueError:
        raise UsageError(
            f"--hostfile={values.hostfile!r}: it is not text in UTF-8"
        ) from None
    return host_lists.parse_file(text, values.hostfile)


def _surroundings(values: Flags, hosts: Sequence[Host]) -> Surroundings:
    return Surroundings(
        python=values.python,
        cwd=values.work_dir,
        env=engine_flags.env_of(values),
        connect=[
            ssh.connect(values.ssh, each.name, values.connect_timeout) for each in hosts
        ],
    )


def _define_flags() -> Flags:
    values = Flags()
    values.text("hosts", None, "Hosts as ssh knows them: h0,h1,user@h2.")
    values.text(
        "hostfile",
        None,
        "File with one host per line, and after it, if needed, address=HOST, where "
        "the other hosts reach it, and link=GBIT_S, the bandwidth of its network "
        "link: the ps run where that is best. # begins a comment.",
    )
    values.text(
        "ssh", "ssh", "The ssh command, with options of yours: --ssh='ssh -p 2200'."
    )
    values.text("python", sys.executable, "The Python interpreter on every host.")
    values.text(
        "work_dir", os.getcwd(), "The working directory of the tasks on every host."
    )
    engine_flags.define_env(values)
    engine_flags.define_first_port(values)
    engine_flags.define(values, 20.0, "every host must answer")
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.ssh")
