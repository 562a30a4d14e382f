"""Plans a program on hosts: as an example, or on hosts at which somebody has looked."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launch.engines import preflight
from launch.engines.engine import EngineError
from launch.engines.layout import Layout, Surroundings
from launch.engines.port_choice import OwnPorts, SharedPorts
from launch.engines.preflight import HostReport
from launch.job.job import Job
from launch.job.plan import Program, Remote
from launch.job.tunnel import LOOPBACK, Tunnel, TunnelEnd, tunnels
from launch.loopback.cluster import make_job
from launch.secure import mode
from tf_config import contract, proxies


@dataclass(frozen=True)
class HostPlanner:
    """The common part of all plans of a job on hosts.

    Attributes:
        program: The script and its flags.
        kind: One of `launch.job.plan.PROGRAM_KINDS`.
        protection: One of `launch.secure.mode.MODES` but `auto`.
        timeout: Seconds that a host may take to answer.
        first_port: The first port of each host, with TLS the only one that is open to the
            other hosts; None for any.
        checkpoint_dir: The directory of the script's checkpoints, on its host.
        options: For `launch.loopback.cluster.make_job`.
    """

    program: Program
    kind: str
    protection: str
    timeout: float
    first_port: int | None = None
    checkpoint_dir: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def example(self, layout: Layout, there: Surroundings) -> Job:
        """Plans the job with ports that nobody has looked at."""
        ports = layout.example_ports(self.first_port, self.protection)
        return self._job(layout, there, ports, layout.example_ends(self.first_port))

    def on_hosts(self, layout: Layout, there: Surroundings) -> Job:
        """Looks at every host, and plans the job with ports that are free there.

        A silent host that has optional workers only is assumed to look like the others.

        Raises:
            EngineError: If a host cannot run its tasks; otherwise as `example`.
        """
        example = self.example(layout, there)
        needs = {each: layout.num_tasks[each] for each in layout.used}
        is_closed = self.protection == mode.TLS
        choice = (SharedPorts if is_closed else OwnPorts)(needs, self.first_port)
        reports = self._look(
            example, layout, there, {each: choice.candidates(each) for each in needs}
        )
        free = {host: report.ports for host, report in reports.items()}
        by_name = {layout.hosts[host].name: each for host, each in reports.items()}
        servers = {p.remote.host for p in example.plans if p.remote and p.is_server}
        taken = [
            text if host is None else f"{layout.hosts[host].name} {text}"
            for host, text in choice.problems(free).items()
        ]
        wrong = preflight.problems(by_name, servers, taken)
        if not wrong and is_closed:
            wrong = preflight.insecure(by_name)
        if wrong:
            raise EngineError("nothing was started:\n" + "\n".join(wrong))
        ends = {
            host: TunnelEnd(
                layout.addresses[host],
                port,
                reports[host].secure["stunnel"],
                reports[host].secure["has_ipv6"],
            )
            for host, port in choice.entries(free).items()
        }
        inside = [layout.addresses[each].strip("[]") for each in needs]
        inside = [LOOPBACK, *inside] if is_closed else inside
        extra = {
            host: proxies.exception_for(inside, report.proxies)
            for host, report in reports.items()
        }
        return self._job(layout, replace(there, extra=extra), choice.tasks(free), ends)

    def _look(
        self,
        example: Job,
        layout: Layout,
        there: Surroundings,
        ports: Mapping[int, list[int]],
    ) -> dict[int, HostReport]:
        """Asks every host, and tells the user of those that do not answer."""
        names = {host: layout.hosts[host].name for host in ports}
        addresses = {host: layout.addresses[host].strip("[]") for host in ports}
        questions = self._questions(example, there, [*addresses.values()])
        reports, absent = preflight.ask(
            example,
            {names[host]: there.connect[host] for host in ports},
            {n: {**questions(n), "ports": ports[host]} for host, n in names.items()},
            self.timeout,
        )
        for name, problem in absent.items():
            print(
                f"launch: {name} {problem}; starting without what would run there "
                f"(--min_workers={example.min_workers})",
                file=sys.stderr,
                flush=True,
            )
        # The name of a pod that does not run yet is not known yet either, nor is a name with a
        # typo, of which that host's own problem says more.
        unknown = {
            f"does not know the host {address}"
            for host, address in addresses.items()
            if names[host] in absent or not reports[names[host]].versions
        }
        return {
            host: replace(
                reports[name],
                problems=tuple(p for p in reports[name].problems if p not in unknown),
            )
            for host, name in names.items()
        }

    def _questions(
        self, example: Job, there: Surroundings, addresses: Sequence[str]
    ) -> Callable[[str], dict[str, Any]]:
        """Returns the request to `launch.remote.probe`, given the host's name."""
        scripts = {
            plan.remote.host
            for plan in example.plans
            if plan.remote and not plan.is_server
        }
        # Each host's Python finds a module where it looks for modules.
        script = None if self.program.is_module else self.program.script
        return lambda name: {
            "python": there.python,
            "env": there.env,
            "cwd": there.cwd,
            "script": script if name in scripts else None,
            "packages": preflight.PACKAGES,
            "modules": ["tensorflow", contract.SERVER_MODULE.partition(".")[0]],
            "addresses": addresses,
            "is_closed": self.protection == mode.TLS,
        }

    def _job(
        self,
        layout: Layout,
        there: Surroundings,
        ports: Mapping[int, Sequence[int]],
        ends: Mapping[int, TunnelEnd],
    ) -> Job:
        options = dict(self.options)
        if self.checkpoint_dir is not None:
            options["checkpoint_dir"] = os.path.join(there.cwd, self.checkpoint_dir)
        cluster = layout.cluster(ports, self.protection)
        job = make_job(cluster, self.program, self.kind, environ=there.env, **options)
        remotes = {
            host: Remote(layout.hosts[host].name, there.connect[host], there.cwd)
            for host in layout.used
        }
        plans = []
        for plan in job.plans:
            host = layout.where[plan.task]
            env = {**there.env, **there.extra.get(host, {}), **plan.env}
            argv = (there.python, *plan.argv[1:])
            plans.append(replace(plan, argv=argv, env=env, remote=remotes[host]))
        between: tuple[Tunnel, ...] = ()
        if self.protection == mode.TLS:
            between = tunnels(
                cluster, layout.where, ends, remotes, there.python, there.env
            )
        return replace(
            job,
            plans=tuple(plans),
            protection=self.protection,
            tunnels=between,
            hosts=tuple(layout.addresses[each] for each in layout.used),
        )
