"""The resources of a parameter-server training, and who uses which. Pure."""

import math

from tfdist.simulation.resources import Resource
from tfdist.simulation.step_cost import Hosts, StepCost

CORES = "the cores"
"""The resource of all tasks on one host."""


class Parts:
    """The resources of the tasks, and how much of each a unit of work takes."""

    def __init__(self, cost: StepCost, hosts: Hosts) -> None:
        fullest, one = cost.fullest_ps, {}
        if hosts.share_one:
            one = {Resource(CORES, hosts.cores): 1.0}
            self.chief = self.ps = self.worker = one
        else:
            self.chief = {Resource("the chief's interpreter", 1.0): 1.0}
            self.ps = {Resource("the cores of the fullest ps", hosts.cores): fullest}
            # A worker computes one step at a time, so its cores are only a limit.
            self.worker = {}
        self.ps_parallelism = hosts.ps_parallelism(fullest)
        self.worker_cores = min(cost.parallelism, hosts.cores)
        self.chief_link: dict[Resource, float] = {}
        self.links_out: dict[Resource, float] = {}
        self.links_in: dict[Resource, float] = {}
        if math.isfinite(hosts.rate):
            self.chief_link = {Resource("the chief's link", hosts.rate): 1.0}
            self.links_out, self.links_in = (
                {Resource(f"the fullest ps's link, {way}", hosts.rate): fullest}
                for way in ("out", "in")
            )
        [self.chief_name] = [each.name for each in self.chief]
        used = (self.chief, self.ps, self.chief_link, self.links_out, self.links_in)
        self.resources = list(dict.fromkeys(each for uses in used for each in uses))
