"""Startup of a process as one of the workers that exchange vectors."""

from typing import NamedTuple

import tf_config
from tfdist.cluster.settings import JobSettings
from tfdist.cluster.startup import wait_for
from tfdist.local_update.exchange import Exchange
from tfdist.local_update.mailbox import Mailboxes
from tfdist.local_update.members import Members
from tfdist.local_update.rejoining import Rejoining, is_expected


class Joined(NamedTuple):
    """This process among the workers.

    Attributes:
        exchange: Its part in exchanges.
        names: The name of each worker, by its index.
        mailboxes: Its mailbox, with the server that has it, and those of the others.
        rejoining: The way back into the others' exchanges; None at the start.
    """

    exchange: Exchange
    names: list[str]
    mailboxes: Mailboxes
    rejoining: Rejoining | None


def addresses(config: tf_config.TFConfig) -> dict[tf_config.Task, str]:
    """Returns the address of each worker, the chief among them, in the order of indices."""
    cluster = config.cluster
    tasks = [task for task in cluster.tasks() if task.job in ("chief", "worker")]
    return {task: cluster.address(task) for task in tasks}


def join(
    config: tf_config.TFConfig, settings: JobSettings, may_come_back: bool = False
) -> Joined:
    """Starts this worker's mailbox, and waits for those of the others.

    A process that was started again joins the others if it `may_come_back`.

    Raises:
        StartupTimeoutError: If another task does not answer in time.
        RuntimeError: If the port of this worker is taken, or the others continue without it
            and take nobody back.
    """
    who, peer_timeout = settings.who, settings.peer_timeout
    tasks = addresses(config)
    me = list(tasks).index(config.task)
    mailboxes = Mailboxes(tasks, me, peer_timeout)
    names = [str(task) for task in tasks]
    exchange = Exchange(mailboxes, Members(me, len(tasks)), names, peer_timeout)
    # Before the wait: another worker may be lost, too.
    if is_expected(mailboxes, me, len(tasks)):
        if not may_come_back:
            raise RuntimeError(
                f"{config.task} was started again, and {who} takes nobody back: the "
                "others go on without it. Let them end, and start the whole cluster again"
            )
        rejoining = Rejoining(exchange, mailboxes, names)
        return Joined(exchange, names, mailboxes, rejoining)
    wait_for(
        {task: address for task, address in tasks.items() if task != config.task},
        settings.startup_timeout,
        "Start this script on each of them (python -m launch.local --num_ps=0 for a "
        "whole cluster on one machine), check the addresses in TF_CONFIG, or pass a "
        f"longer startup_timeout to {who}",
        servers=True,
    )
    return Joined(exchange, names, mailboxes, None)
