"""Whatever the command line or TF_CONFIG says: a clear error, or a valid cluster.

The commands run in this process, as far as starting anything.
"""

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import sys
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch import chaos, doctor, local, task
from launch.diagnose import peer, running, shown
from launch.diagnose.agreement import between_tasks
from launch.diagnose.definition import from_text
from launch.diagnose.diagnosis import each_task
from launch.diagnose.probe_result import Peer, ProbeOutcome, ProbeResult
from launch.fault import faults
from launch.flags import command_line
from launch.flags.config_file import NOT_SETTINGS
from launch.loopback import foreground
from tf_config import JOBS, Task, TFConfig

from ..tf_config.test_tf_config_properties import clusters

pytestmark = pytest.mark.not_in_gate

unhurried = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# What a shell can pass: no zero, and bytes that are not UTF-8 as surrogates.
words = st.lists(
    st.characters(codec="utf-8", exclude_characters="\0")
    | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"]),
    max_size=8,
).map(lambda letters: os.fsdecode(os.fsencode("".join(letters))))
numbers = (
    st.integers(0, 4) | st.integers(-3, 6) | st.sampled_from([2**31, -(2**63), 10**30])
)
times = (
    st.floats(0.1, 100)
    | st.floats()
    | st.sampled_from(["inf", "nan", "-0", "1e999", "0x1", "1_0"])
)
addresses = st.builds("{}:{}".format, st.sampled_from("abc") | words, numbers)
host_lists = st.lists(addresses, max_size=3).map(",".join)
# What a shell, sbatch or Kubernetes might expand, split or run.
snares = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=8
) | st.sampled_from(
    [
        *("$(touch pwned)", "`touch pwned`", "'; touch pwned; '", "!x", "#", "-n", ""),
        *("a b", "'", '"', "\\", "\n", "\r\n", "\r'", "\n#", "\n#SBATCH --array=1-9\n"),
        *(
            "$(HOME)",
            "$$(HOME)",
            "$$$",
            "{{x}}",
            "%j",
            "\t",
            "\u2028",
            "\ufeff",
            "\x85",
        ),
    ]
)
odd = st.sampled_from(
    ["--", "-", "--=", "-=x", "---", "--flagfile=absent", "--undefok"]
)


def flags_of(command, **own):
    """A strategy of the values of each flag of a command; `own` where its kind is no help.

    The help and the dry run end the command early, and the files of flags are read or
    written: all of them are left out.
    """
    kinds = {
        "bool": st.sampled_from(["true", "0", "no"]),
        "int": numbers,
        "float": times,
    }
    found = {}
    define = getattr(command, "define_flags", None) or command._define_flags
    values = define()
    for name in set(values) - NOT_SETTINGS - {"help"}:
        flag = values[name]
        kind = flag.flag_type()
        if choices := getattr(flag.parser, "enum_values", None):
            found[name] = st.sampled_from([*choices, choices[0].upper()])
        else:
            found[name] = own[name] if name in own else kinds.get(kind, words)
    return found


def command_lines(flags, rest):
    """Flags with values that may fit, then maybe anything, then the rest."""
    fitting = st.one_of(
        *(
            st.builds("--{}={}".format, st.just(name), values)
            for name, values in flags.items()
        )
    )
    damaged = st.builds("--{}={}".format, st.sampled_from([*flags]), words)
    bare = st.sampled_from([f"--{name}" for name in flags])
    anything = st.lists(damaged | bare | odd | words, max_size=2)
    return st.builds(
        lambda *parts: [each for part in parts for each in part],
        st.lists(fitting, max_size=5),
        st.just([]) | anything,
        rest,
    )


def run(main, args, encoding="utf-8"):
    """Runs a command as its terminal sees it: status, standard output and error."""
    output = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
    errors = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    with (
        mock.patch.object(sys, "argv", ["command", *args]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        command_line.run(main, "launch.command")
    for stream in (output, errors):
        stream.flush()
    written = [
        each.buffer.getvalue().decode(errors="surrogateescape")
        for each in (output, errors)
    ]
    return ended.value.code, *written


def check(main, args):
    """Returns what was printed by a command that refuses or succeeds, and says so."""
    status, output, errors = run(main, args)
    assert "Traceback" not in errors
    if status == 2:
        assert errors.startswith("launch.command: error: ")
        assert output == ""
    else:
        assert status in (0, 1)
        assert errors == ""
    return status, output


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "train.py"
    path.touch()
    return str(path)


script_names = st.just("SCRIPT") | st.sampled_from(["", ".", "absent.py"]) | words
rest = st.builds(lambda name, flags: [name, *flags], script_names, st.lists(words))


@unhurried
@given(st.lists(words))
def test_the_flags_of_a_script_are_printed_as_they_are(script, flags):
    args = ["--dry_run", "--num_ps=0", "--num_workers=1", script, *flags]
    status, output = check(local.main, args)
    assert status == 0
    line = output.split("\n", 1)[1]
    assert shlex.split(line)[-len(flags) - 1 :] == [script, *flags]


def check_plans(output):
    """Every task of the printed plan has the same cluster, which is valid."""
    configs = [
        TFConfig.from_json(shlex.split(text)[0])
        for text in re.findall(r"^TF_CONFIG=('[^']*'|\S+) ", output, re.M)
    ]
    assert configs
    assert len({each.cluster for each in configs}) == 1
    assert len({each.task for each in configs}) == len(configs)


host_flags = {
    "job_name": st.sampled_from([*JOBS, "PS"]),
    **{f"{job}_hosts": host_lists for job in JOBS},
}
kinds = st.lists(st.sampled_from(faults.FAULT_KINDS) | words, max_size=3).map(",".join)
LAUNCHERS = {
    local: (flags_of(local), (foreground, "run"), check_plans),
    task: (
        flags_of(task, gpus=st.sampled_from(["0,1", ",", "-1"]), **host_flags),
        (os, "execve"),
        check_plans,
    ),
    chaos: (flags_of(chaos, kinds=kinds), (chaos, "run"), faults.Schedule.from_json),
}
"""Commands: their flags, what starts something, and what reads the output of a dry run."""


@pytest.mark.parametrize("command", LAUNCHERS)
@unhurried
@given(data=st.data())
def test_whatever_the_flags_say(command, script, data):
    flags, starts, read = LAUNCHERS[command]
    args = data.draw(command_lines(flags, rest))
    args = ["--dry_run", *(script if each == "SCRIPT" else each for each in args)]
    # A flag may undo the dry run.
    with mock.patch.object(*starts, side_effect=SystemExit(0)) as started:
        status, output = check(command.main, args)
    if status == 0 and not started.called and "flags:" not in output:
        read(output)


@unhurried
@given(clusters(), st.sampled_from(JOBS), st.integers(0, 3))
def test_the_hosts_of_a_valid_cluster(cluster, job, index):
    hosts = cluster.as_dict().items()
    flags = [f"--{name}_hosts={','.join(each)}" for name, each in hosts]
    flags += [f"--job_name={job}", f"--task_index={index}"]
    status, output = check(task.main, ["--dry_run", *flags, __file__])
    assert (status == 0) == (Task(job, index) in cluster)
    if status == 0:
        config = TFConfig.from_json(shlex.split(output)[0].removeprefix("TF_CONFIG="))
        assert config.cluster.cluster_spec() == cluster.cluster_spec()
        status, _ = check(doctor.main, ["--dry_run", f"--tf_config={config.to_json()}"])
        assert status == 0
    # An evaluator may be missing from the cluster.
    if job != "evaluator":
        assert check(doctor.main, ["--dry_run", *flags])[0] == status // 2


json_values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
    ),
    max_leaves=6,
)
tf_configs = st.builds(
    lambda cluster, task: json.dumps({"cluster": cluster, "task": task}),
    st.dictionaries(
        st.sampled_from([*JOBS, "master"]) | words,
        st.lists(addresses, max_size=3) | json_values,
        max_size=4,
    )
    | json_values,
    st.builds(
        lambda job, index: {"type": job, "index": index}, st.sampled_from(JOBS), numbers
    )
    | json_values,
)
pids = numbers.filter(lambda pid: pid != 1)
doctor_flags = flags_of(doctor, tf_config=tf_configs, pid=pids, **host_flags)


@unhurried
@given(command_lines(doctor_flags, st.just([])), tf_configs | words | st.none())
def test_launch_doctor(args, text):
    environ = {} if text is None else {"TF_CONFIG": text}
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch.object(doctor, "_probe", return_value=[]),
        mock.patch.object(running, "clusters", return_value=[]),
    ):
        if text is None:
            os.environ.pop("TF_CONFIG", None)
        check(doctor.main, args)


@unhurried
@given(tf_configs | st.text())
def test_what_the_doctor_would_probe_are_addresses(text):
    definition = from_text(text)
    reports = {
        name: ProbeResult(address, ProbeOutcome.REFUSED)
        for name, address in definition.addresses.items()
    }
    assert len(each_task(reports)) == len(reports)
    assert between_tasks(reports) == []


@unhurried
@given(words, words | st.none(), times, tf_configs | words | st.none())
def test_whatever_a_server_says_becomes_findings(task, version, clock, text):
    ahead = float(clock) if isinstance(clock, float) else 0.0
    peer = Peer(task, version, ahead, 0.1, text, "")
    reports = {
        "ps:0": ProbeResult("a:1", ProbeOutcome.TENSORFLOW, "", "10.0.0.1", peer=peer)
    }
    found = [*each_task(reports), *between_tasks(reports)]
    assert {each.subject for each in found} == {"ps:0", "cluster"}
    for show in (shown._print_json, shown._print_table):
        for encoding in ("utf-8", "ascii"):
            status, _, errors = run(lambda _, f=show: f(found) or 0, [], encoding)
            assert (status, errors) == (0, "")


@unhurried
@given(st.lists(st.binary(), min_size=1))
def test_whatever_bytes_a_server_answers_are_read_or_rejected(answers):
    answer = itertools.cycle(answers)
    calls = lambda method, request=None: next(answer)  # noqa: E731
    with contextlib.suppress(peer.NotTensorFlowError):
        assert re.fullmatch(r"[^/]+:[0-9]+", peer._task(calls))
    with contextlib.suppress(*peer.MALFORMED):
        peer._Session(calls, "ps:0").read()
