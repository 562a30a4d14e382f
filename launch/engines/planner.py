"""Plans a program on hosts: as an example, or on hosts at which somebody has looked."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launch.engines.layout import Layout, Surroundings
from launch.engines.look import look_at_hosts
from launch.job import Job
from launch.loopback import make_job
from launch.plan import Program, Remote
from launch.secure import mode
from launch.secure.tunnel import End, Tunnel, tunnels


@dataclass(frozen=True)
class HostPlanner:
    """What every plan of a job on hosts has in common, wherever its tasks go.

    Attributes:
        program: The script and its flags.
        kind: One of `launch.plan.PROGRAM_KINDS`.
        protection: What keeps strangers out: one of `launch.secure.mode.MODES` but `auto`.
        timeout: Seconds that a host may take to answer.
        first_port: The first port of each host, with TLS the only one that is open to the
            other hosts; None for any.
        checkpoint_dir: Where the script keeps its checkpoints, on its host.
        options: For `launch.loopback.make_job`.
    """

    program: Program
    kind: str
    protection: str
    timeout: float
    first_port: int | None = None
    checkpoint_dir: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def example(self, layout: Layout, there: Surroundings) -> Job:
        """Plans the job with ports that nobody has looked at.

        Raises:
            PlanError: If the program does not fit the cluster.
            ClusterError: If the addresses are malformed.
        """
        ports = layout.example_ports(self.first_port, self.protection)
        return self._job(layout, there, ports, layout.example_ends(self.first_port))

    def on_hosts(self, layout: Layout, there: Surroundings) -> Job:
        """Looks at every host, and plans the job with ports that are free there.

        Raises:
            EngineError: If a host cannot run its tasks; otherwise as `example`.
        """
        found = look_at_hosts(
            layout,
            self.example(layout, there),
            there,
            self.program,
            first_port=self.first_port,
            timeout=self.timeout,
        )
        there = replace(there, extra=found.proxies)
        return self._job(layout, there, found.ports, found.ends)

    def _job(
        self,
        layout: Layout,
        there: Surroundings,
        ports: Mapping[int, Sequence[int]],
        ends: Mapping[int, End],
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
