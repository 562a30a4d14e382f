"""How a local job starts and ends: real processes, and a stand-in for the server."""

import ast
import json
import os
import re

import pytest

from launch.job.plan import Program
from launch.local import crowding, local_cluster, make_job

from ..launch_programs.launcher import DEADLINE, SLEEP

pytestmark = pytest.mark.in_gate


def test_chief_runs_the_script_with_its_flags_untouched(launcher):
    script = launcher.script("import sys, os; print(sys.argv, os.environ['TF_CONFIG'])")
    flags = ["--num_ps=7", "-x", "--help", "--flagfile=none", "--", "a b", ""]
    status, output, _ = launcher.run("--num_ps=1", "--num_workers=1", script, *flags)
    assert status == 0
    lines = output.splitlines()
    assert sorted(lines[:2]) == [
        "[ps:0]     hello from ps:0",
        "[worker:0] hello from worker:0",
    ]
    name, argv, config = lines[2].partition("]")[0], *lines[2][11:].split("] ")
    assert name == "[chief"
    assert ast.literal_eval(argv + "]") == [script, *flags]
    config = json.loads(config)
    assert config["task"] == {"type": "chief", "index": 0}
    assert [*config["cluster"]] == ["chief", "ps", "worker"]


def test_script_sees_its_own_directory_first_as_with_plain_python(launcher):
    (launcher.directory / "deep").mkdir()
    launcher.script("VALUE = 'neighbour'", "deep/neighbour.py")
    script = launcher.script(
        "import neighbour; print(neighbour.VALUE)", "deep/train.py"
    )
    status, output, _ = launcher.run(script)
    assert (status, "[chief]    neighbour\n" in output) == (0, True)


@pytest.mark.parametrize(
    ("code", "expected", "ending"),
    [
        ("raise SystemExit(3)", 3, "failed"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
    ],
)
def test_exit_status_is_the_chiefs(launcher, code, expected, ending):
    status, _, errors = launcher.run("--max_restarts=0", launcher.script(code))
    assert status == expected
    rows = {line.split()[1]: line for line in errors.splitlines()}
    assert ending in rows["chief"]
    assert "ended by the launcher" in rows["ps:0"]
    assert rows["worker:1"].split()[6] == "-"


def test_every_task_program_waits_for_all_its_workers(launcher):
    script = launcher.script(
        """
        import json, os, time
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        while index and not os.path.exists("over"):
            time.sleep(0.05)
        print("done", index)
        """
    )
    process = launcher.start("--num_ps=0", "--chatty", script)
    said = iter(process.stderr.readline, "")
    assert any("waiting up to 60 s for worker:1 to end" in line for line in said)
    launcher.script("", "over")
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert output == "[worker:0] done 0\n[worker:1] done 1\n"


def test_every_task_program_does_not_wait_for_ever(launcher):
    script = launcher.script(
        """
        import os, time
        if '"index":1' in os.environ["TF_CONFIG"]:
            time.sleep(600)
        """
    )
    flags = ["--num_ps=0", "--straggler_timeout=0.3"]
    status, _, errors = launcher.run(*flags, script)
    assert status == 0
    assert "worker:1 did not end in time" in errors


@pytest.mark.not_in_gate
def test_ps_that_run_the_script_may_end_by_themselves_and_need_not(launcher):
    script = launcher.script(
        """
        import os, time
        if '"type":"ps","index":0' in os.environ["TF_CONFIG"]:
            time.sleep(0.5)
        elif '"type":"ps"' in os.environ["TF_CONFIG"]:
            time.sleep(600)
        """
    )
    flags = ["--program=every_task", "--grace_period=5", "--num_workers=1"]
    status, _, errors = launcher.run(*flags, script)
    assert status == 0
    rows = {line.split()[1]: line for line in errors.splitlines()}
    assert "finished" in rows["ps:0"]
    assert "ended by the launcher" in rows["ps:1"]


def test_no_proxy_stands_between_the_tasks(launcher):
    script = launcher.script("import os; print(os.environ['no_grpc_proxy'])")
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "a.org"}
    status, output, _ = launcher.run("--num_ps=0", "--num_workers=1", script, **proxy)
    assert (status, output) == (0, "[worker:0] a.org,127.0.0.1\n")


EVALUATES = """
import os, signal, time
if "evaluator" in os.environ["TF_CONFIG"]:
    {}
    open("evaluates", "w")
    time.sleep(600)
while not os.path.exists("evaluates"):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("program", ["coordinator", "every_task"])
def test_an_evaluator_that_has_more_to_do_fails_the_job(launcher, program):
    script = launcher.script(
        EVALUATES.format("signal.signal(signal.SIGTERM, lambda *_: exit(1))")
    )
    flags = [f"--program={program}", "--num_ps=0", "--num_workers=1", "--evaluator"]
    status, _, errors = launcher.run(*flags, "--straggler_timeout=0.1", script)
    assert status == 1
    assert "it has not evaluated the last checkpoint" in errors
    assert re.search(r"evaluator +ended by the launcher +1 ", errors)


def test_a_job_waits_for_its_evaluator_after_the_chief(launcher):
    script = launcher.script(
        """
        import os, time
        if "evaluator" not in os.environ["TF_CONFIG"]:
            open("checkpoint", "w")
        else:
            while not os.path.exists("checkpoint"):
                time.sleep(0.05)
            time.sleep(1)  # As long as the evaluation takes.
            open("evaluated", "w")
        """
    )
    status, _, errors = launcher.run("--evaluator", script)
    assert status == 0
    assert (launcher.directory / "evaluated").exists()
    assert re.search(r"evaluator +finished +0 ", errors)


def test_the_table_says_what_an_evaluator_may_have_missed(launcher):
    script = launcher.script(EVALUATES.format("pass"))
    status, _, errors = launcher.run("--evaluator", "--straggler_timeout=0.1", script)
    assert status == 0
    missed = "maybe before it evaluated the last checkpoint"
    assert f"evaluator  ended by the launcher, {missed}  " in errors


def test_output_is_prefixed_on_the_terminal_and_complete_in_the_log(launcher):
    script = launcher.script(
        r"""
        import os, sys
        os.write(1, b"1/2\r2/2\n")
        os.write(2, b"\xff\xfe\n")
        os.write(1, b"no end")
        """
    )
    status, output, _ = launcher.run(script)
    assert status == 0
    chief = [line for line in output.splitlines() if line.startswith("[chief]")]
    assert [line[11:] for line in chief] == ["2/2", r"\xff\xfe", "no end"]
    assert launcher.log("chief") == b"1/2\r2/2\n\xff\xfe\nno end"
    assert launcher.log("ps-1") == b"hello from ps:1\n"


def test_tensorflow_chatter_is_in_the_logs_and_on_request(launcher):
    line = "I0000 00:00:1795256414.158899   28852 port.cc:153] one"
    server = launcher.directory / "tfdist" / "server.py"
    server.write_text(f"print({line!r})\n{server.read_text()}")
    script = launcher.script(f"print({line!r})")
    _, output, _ = launcher.run(script)
    assert line not in output
    assert line.encode() in launcher.log("ps-0")
    assert line.encode() in launcher.log("chief")
    _, output, _ = launcher.run(script, TF_CPP_MIN_LOG_LEVEL="0")
    assert output.count(line) == 5


def test_job_outlives_the_viewer_of_its_output(launcher):
    script = launcher.script("for i in range(10_000): print('x' * 100)")
    read_end, write_end = os.pipe()
    process = launcher.start(script, stdout=write_end)
    os.close(write_end)
    os.close(read_end)
    _, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, len(launcher.log("chief"))) == (0, 1_010_000)
    assert "Traceback" not in errors


def test_server_that_dies_at_start_is_reported_at_once(launcher):
    flags = ["--startup_timeout=600", launcher.script("print('never')")]
    status, output, errors = launcher.run(*flags, DYING_SERVER="ps:1")
    assert status == 7
    assert "its address is 127.0.0.1:" in errors
    assert "ps:1 exited with status 7 before every server was listening" in errors
    assert "[launch]     last words" in errors
    assert "never" not in output


def test_server_that_dies_while_another_is_awaited_is_reported_at_once(launcher):
    flags = ["--startup_timeout=600", launcher.script("print('never')")]
    variables = {"SILENT_SERVER": "ps:0", "FAILING_SERVER": "worker:1"}
    process = launcher.start(*flags, **variables)
    launcher.wait_for_log("worker-1", b"hello")
    launcher.script("", "fail")
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 7
    assert "worker:1 exited with status 7 before" in errors
    assert "never" not in output


@pytest.mark.parametrize(("workers", "is_warned"), [(16, False), (17, True)])
def test_too_many_workers_are_warned_of(workers, is_warned, tmp_path):
    cluster = local_cluster(1, workers)
    job = make_job(cluster, Program("T"), log_dir=str(tmp_path))
    found = crowding(job, 4, 2 * 10**9)
    assert bool(found) == is_warned
    assert "17 workers share 4 cores, and the 19 tasks need 3 GB" in found or not found


@pytest.mark.parametrize("name", ["package.train", "package.inner"])
def test_a_module_runs_as_python_runs_it(launcher, name):
    package = launcher.directory / "package"
    (package / "inner").mkdir(parents=True)
    for path in ("__init__.py", "beside.py", "inner/__init__.py"):
        (package / path).touch()
    (package / "train.py").write_text(
        "import sys\nfrom . import beside\nprint(__name__, __package__, sys.argv[1:])\n"
    )
    (package / "inner" / "__main__.py").write_text("from .. import train\n")
    status, output, _ = launcher.run("--num_ps=0", "-m", name, "--epochs=5", "-m")
    module = "__main__" if name == "package.train" else "package.train"
    assert status == 0
    assert output.count(f"{module} package ['--epochs=5', '-m']") == 1


@pytest.mark.parametrize("options", [(), ("--checkpoint_dir=kept",)])
def test_a_killed_task_starts_all_again_where_they_can_resume(launcher, options):
    script = launcher.script(
        "import os, pathlib, signal, time\n"
        "task = os.environ['TF_CONFIG'].partition('\"task\"')[2]\n"
        "mine = pathlib.Path(f'again-{int(\"1\" in task)}')\n"
        "is_again = mine.exists()\n"
        "mine.touch()\n"
        "if '1' in task and not is_again:\n"
        # Else worker:0, started again, would take itself for the first.
        "    while not pathlib.Path('again-0').exists():\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "while not is_again:\n"
        f"    {SLEEP}\n"
        "print('trained to the end')\n"
    )
    status, output, errors = launcher.run("--num_ps=0", "--chatty", *options, script)
    assert status == (0 if options else 137)
    assert output.count("trained to the end") == (2 if options else 0)
    restarted = "worker:1 was killed by SIGKILL: restarting worker:0, worker:1"
    assert (restarted in errors) == bool(options)


def test_dry_run_prints_the_plan_and_starts_nothing(launcher):
    script = launcher.script("open('started', 'w')")
    status, output, errors = launcher.run(
        "--dry_run", "--num_ps=1", script, "--a='b c'"
    )
    assert (status, errors) == (0, "")
    tasks = [line for line in output.splitlines() if line.startswith("# ")]
    assert [line.split()[1] for line in tasks] == [
        "chief",
        "ps:0",
        "worker:0",
        "worker:1",
    ]
    assert output.count("-m tfdist.server") == 3
    assert output.count(f"""{script} '--a='"'"'b c'"'"''""") == 1
    assert sorted(path.name for path in launcher.directory.iterdir()) == [
        "tfdist",
        "train.py",
    ]
