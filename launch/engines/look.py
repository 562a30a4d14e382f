"""Asks the hosts of a job whether they can run it, and which ports are free."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from launch.engines import preflight
from launch.engines.engine import EngineError
from launch.engines.layout import Layout, Surroundings
from launch.engines.port_choice import OwnPorts, PortChoice, SharedPorts
from launch.job import Job
from launch.plan import Program
from launch.secure import mode
from launch.secure.tunnel import LOOPBACK, End
from launch.supervise import policy
from tf_config import contract, proxies


@dataclass(frozen=True)
class Found:
    """What the hosts have.

    Attributes:
        ports: Free ports of each host, one for each of its tasks.
        proxies: The variables that keep the job's traffic off the proxies of each host.
        ends: Each host's end of the tunnels between them; none without TLS.
    """

    ports: Mapping[int, list[int]]
    proxies: Mapping[int, Mapping[str, str]]
    ends: Mapping[int, End]


def look_at_hosts(
    layout: Layout,
    job: Job,
    there: Surroundings,
    program: Program,
    *,
    first_port: int | None,
    timeout: float,
) -> Found:
    """Looks at every host that has a task.

    A host that does not answer, and has only workers that the job can do without, is
    taken for one like the others.

    Args:
        layout: Where each task goes.
        job: The job, with any ports.
        there: What the tasks shall find.
        program: What the tasks run that are no servers.
        first_port: The first port of each host, with TLS the only one that is open to
            the other hosts; None for any.
        timeout: Seconds that a host may take to answer.

    Raises:
        EngineError: If a host cannot run its tasks.
    """
    used, hosts = layout.used, [layout.hosts[each].name for each in layout.used]
    servers = {plan.remote.host for plan in job.plans if plan.remote and plan.is_server}
    scripts = {
        plan.remote.host for plan in job.plans if plan.remote and not plan.is_server
    }
    addresses = [layout.addresses[each].strip("[]") for each in used]
    is_closed = job.protection == mode.TLS
    needs = {each: layout.num_tasks[each] for each in used}
    choice: PortChoice = (SharedPorts if is_closed else OwnPorts)(needs, first_port)
    candidates = {
        name: choice.candidates(host) for host, name in zip(used, hosts, strict=True)
    }
    asked = [
        {
            "python": there.python,
            "env": there.env,
            "cwd": there.cwd,
            # Each host's Python finds a module where it looks for modules.
            "script": (
                program.script if name in scripts and not program.is_module else None
            ),
            "packages": preflight.PACKAGES,
            "modules": ["tensorflow", contract.SERVER_MODULE.partition(".")[0]],
            "ports": candidates[name],
            "addresses": addresses,
            "is_closed": is_closed,
        }
        for host, name in zip(used, hosts, strict=True)
    ]
    connections = [there.connect[each] for each in used]

    def is_enough(answered: Collection[int]) -> bool:
        rest = {name for index, name in enumerate(hosts) if index not in answered}
        lost = [p.task for p in job.plans if p.remote and p.remote.host in rest]
        return policy.can_spare(job.plans, lost, (), job.needed_workers)

    answers = preflight.ask(connections, asked, timeout, is_enough)
    reports = dict(zip(hosts, answers, strict=True))
    reports, absent = preflight.without_absent(reports, candidates, job)
    # The name of a pod that does not run yet is not known yet either.
    unknown = {
        f"does not know the host {address}"
        for name, address in zip(hosts, addresses, strict=True)
        if name in absent
    }
    reports = {
        name: replace(
            each, problems=tuple(p for p in each.problems if p not in unknown)
        )
        for name, each in reports.items()
    }
    for host, problem in absent.items():
        print(
            f"launch: {host} {problem}; starting without what would run there "
            f"(--min_workers={job.min_workers})",
            file=sys.stderr,
            flush=True,
        )
    by_index = dict(zip(used, reports.values(), strict=True))
    free = {each: report.ports for each, report in by_index.items()}
    names = dict(zip(used, hosts, strict=True))
    taken = [
        text if each is None else f"{names[each]} {text}"
        for each, text in choice.problems(free).items()
    ]
    if wrong := preflight.problems(reports, servers, taken):
        raise EngineError("nothing was started:\n" + "\n".join(wrong))
    if is_closed and (wrong := preflight.insecure(reports)):
        raise EngineError("nothing was started:\n" + "\n".join(wrong))
    ends = {
        each: End(
            layout.addresses[each],
            port,
            by_index[each].secure["stunnel"],
            by_index[each].secure["has_ipv6"],
        )
        for each, port in choice.entries(free).items()
    }
    inside = [LOOPBACK, *addresses] if is_closed else addresses
    return Found(
        choice.tasks(free),
        {
            each: proxies.exception_for(inside, report.proxies)
            for each, report in by_index.items()
        },
        ends,
    )
