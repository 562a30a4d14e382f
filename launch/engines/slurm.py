"""The engine Slurm: a batch script, whose first node supervises the tasks on all.

The supervisor of `launch.supervise` runs in the batch step, and reaches each node with
srun. Slurm ends what is left of the job when that step ends, however it does.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from launch.engines import background, engine, slurm_client, slurm_script
from launch.engines.engine import ENDED, RUNNING, STARTING, EngineError, Status
from launch.engines.here import Tail, logs
from launch.engines.record import Record, RecordError, load
from launch.engines.slurm_allocation import SlurmNode, Warnings
from launch.engines.slurm_client import SlurmJob
from launch.engines.slurm_script import Batch
from launch.job.job import Job
from launch.loopback import foreground
from launch.loopback.cluster import make_log_dir

__all__ = ["cancel", "detach", "follow", "logs", "render", "run", "status"]

OUTPUT = "launch.log"
_END = "end.json"
_TURN, _ASK_INTERVAL = 0.2, 2.0  # seconds
_REFUSAL_TIMEOUT = 10.0
_CANCEL_TIMEOUT = 180.0
_SILENCE_TIMEOUT = 600.0
_FILE_TIMEOUT = 5.0

tell = partial(engine.tell, "slurm")


def render(job: Batch) -> str:
    """Returns the batch script."""
    return slurm_script.render(job)


def run(job: Batch, record: Record) -> int:
    """Submits a job, shows its output, and returns its exit status."""
    signals = background.noted_signals()
    with _nothing_left_if_refused(record), contextlib.ExitStack() as stack:
        record = _submit(job, record)
        tell(
            f"this is job {record.name}, and for Slurm {record.job_id}; from another "
            f"shell: python -m launch.jobs status {record.name}"
        )
        stack.enter_context(background.guarded(["scancel", record.job_id]))
        _refuse_hopeless(job, record)
        guard = stack.pop_all()

    def watch(now: SlurmJob | None) -> None:
        if signals:
            tell(f"{signal.Signals(signals[0]).name}: cancelling job {record.job_id}")
            slurm_client.cancel(record.job_id)
            signals.clear()
        if now:
            _refuse_if_hopeless(now, job, record)
        if now and now.state in slurm_client.PENDING and now.reason not in told:
            told.append(now.reason)
            tell(f"job {record.job_id} waits: {now.reason or 'Slurm has not said why'}")

    told = [""]
    with guard:
        for line in _follow(record, watch):
            print(line, flush=True)
    code = status(record).code
    return 1 if code is None else code


def detach(job: Batch, record: Record) -> None:
    """Submits a job that continues without this process."""
    with _nothing_left_if_refused(record):
        _refuse_hopeless(job, _submit(job, record))


def run_in_allocation(
    job_id: str, first: SlurmNode, prepare: Callable[[], tuple[Job, Record]]
) -> int:
    """Runs a job on the nodes of this process, the first of which is this one.

    The job goes back into Slurm's queue if Slurm takes the nodes before its program has
    succeeded. `prepare` looks at the nodes; its `EngineError` is raised unless that is why.
    """
    warnings = Warnings()
    failure: BaseException | None = None
    code, end = 1, None
    with warnings.watched(first):
        # Until the job handles it.
        signal.signal(signal.SIGTERM, _leave)
        try:
            job, record = prepare()
            make_log_dir(job.log_dir)
            record.write_place()
            end = Path(record.log_dir, _END)
            end.unlink(missing_ok=True)  # From a run before Slurm requeued.
            code = foreground.run(job)
        except (EngineError, SystemExit) as error:
            failure = error
        # The following takes a moment, and a copy of the signal may still come.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if code and warnings.came and _requeued(job_id):
        tell("Slurm takes the nodes: the job is back in its queue")
        return code
    if failure is not None:
        raise failure
    if end is not None:
        end.write_text(json.dumps({"code": code, "job_id": job_id}))
    return code


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def _requeued(job_id: str) -> bool:
    with contextlib.suppress(EngineError):
        now = slurm_client.look(job_id)
        # A job that was cancelled is not RUNNING any more.
        return bool(now and now.state == "RUNNING" and slurm_client.requeue(job_id))
    return False


@contextlib.contextmanager
def _nothing_left_if_refused(record: Record) -> Iterator[None]:
    """Forgets a job that Slurm refuses, and removes the directories made for it."""
    _check_is_new(record)
    ours = Path(record.log_dir)
    new = [each for each in (ours, *ours.parents) if not each.exists()]
    try:
        yield
    except EngineError:
        shutil.rmtree(record.path, ignore_errors=True)
        for each in new:
            with contextlib.suppress(OSError):
                each.rmdir()
        raise


def _check_is_new(record: Record) -> None:
    with contextlib.suppress(RecordError):
        before = load(record.name)
        if before.engine == record.engine and status(before).state != ENDED:
            raise EngineError(
                f"a job named {record.name!r} is running: choose another --name, or end "
                f"it with python -m launch.jobs cancel {record.name}"
            )


def _submit(job: Batch, record: Record) -> Record:
    script = render(job)
    make_log_dir(record.log_dir)
    for name in (OUTPUT, _END, "place.json"):
        Path(record.log_dir, name).unlink(missing_ok=True)
    with record.held():
        found = replace(record, job_id=slurm_client.submit(script))
        found.write()
    return found


def _refuse_hopeless(job: Batch, record: Record) -> None:
    """Waits until Slurm has looked at the job, and ends it if that can never start."""
    deadline = time.monotonic() + _REFUSAL_TIMEOUT
    while (now := _look(record)) and now.state == "PENDING":
        _refuse_if_hopeless(now, job, record)
        if now.reason or time.monotonic() > deadline:
            return
        time.sleep(_TURN)


def _refuse_if_hopeless(now: SlurmJob, job: Batch, record: Record) -> None:
    if not now.is_hopeless:
        return
    slurm_client.cancel(record.job_id)
    asked = " and ".join(
        f"{part.nodes} nodes" + (" with GPUs" if part.gpus_per_node else "")
        for part in job.parts
    )
    there = slurm_client.partitions()
    raise EngineError(
        f"Slurm cannot start the job ({now.reason}), and it was cancelled: it asks for "
        f"{asked}{f', and the partitions are {there}' if there else ''}; lower --nodes, "
        "--num_ps, --num_workers, --cpus_per_task, --mem, --gpus_per_worker or --time, "
        "or choose another --partition"
    )


def status(record: Record) -> Status:
    """Returns how a job stands."""
    now = _look(record)
    if now and now.is_active:
        if now.state in slurm_client.PENDING:
            return Status(STARTING, reason=now.reason)
        logs = [log for *_, log in record.placed.tasks.values()]
        return Status(RUNNING if any(map(os.path.exists, logs)) else STARTING)
    end = {}
    with contextlib.suppress(OSError, ValueError):
        end = json.loads(Path(record.log_dir, _END).read_text())
    if end.get("job_id") == record.job_id:
        found = Status(ENDED, end["code"])
    elif now:
        why = "" if now.state == "COMPLETED" else f"Slurm says {now.state}"
        found = Status(ENDED, now.code, why)
    elif "code" in record.end:
        found = Status(ENDED, record.end["code"])
    else:
        return Status(ENDED, reason="Slurm has forgotten it")
    if found.code is not None and not record.end:
        record.write_end(found.code)
    return found


def follow(record: Record) -> Iterator[str]:
    """Yields the launcher's output on the first node."""
    return _follow(record, lambda now: None)


def _follow(record: Record, watch: Callable[[SlurmJob | None], None]) -> Iterator[str]:
    path = Path(record.log_dir, OUTPUT)
    tail = Tail(str(path))
    now: SlurmJob | None = SlurmJob("PENDING")
    asked, is_over, last = 0.0, False, 0.0
    heard = time.monotonic()
    while True:
        if not is_over and time.monotonic() - asked > _ASK_INTERVAL:
            try:
                now = _look(record)
                heard = time.monotonic()
            except EngineError:
                # A job outlives a restart of the controller.
                if time.monotonic() - heard > _SILENCE_TIMEOUT:
                    raise
            asked = time.monotonic()
            watch(now)
            if not (now and now.is_active):
                # The last lines may take a while to arrive through a file server.
                is_over, last = True, asked + _FILE_TIMEOUT * (not path.exists())
        yield from tail.lines()
        if is_over and time.monotonic() >= last:
            break
        time.sleep(_TURN)
    yield from tail.rest()


def cancel(record: Record) -> None:
    """Cancels a job, and waits until Slurm has cleaned up after it."""
    deadline = time.monotonic() + _CANCEL_TIMEOUT
    while (now := _look(record)) and now.is_active:
        if now.state != "COMPLETING":
            slurm_client.cancel(record.job_id)
        if time.monotonic() > deadline:
            raise EngineError(
                f"job {record.name} does not end: see scontrol show job {record.job_id}"
            )
        time.sleep(_TURN)


def _look(record: Record) -> SlurmJob | None:
    # Without an id, Slurm's commands mean every job.
    return slurm_client.look(record.job_id) if record.job_id else None
