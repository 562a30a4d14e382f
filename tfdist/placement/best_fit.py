"""Greedy load balancing on as few ps as it takes."""

from tfdist.placement.greedy import GreedyLoadBalancing


class BestFit(GreedyLoadBalancing):
    """Places each variable where it does not raise the load of the fullest ps.

    Of the ps on which it fits below the load of the fullest, it takes the one with the
    most load; if there is none, the least loaded, as `GreedyLoadBalancing` does. So small
    variables share a ps instead of spreading over all of them, and a step, which
    exchanges messages with every ps that it uses, exchanges fewer. On two ps, both place
    alike.

    The bound of `GreedyLoadBalancing` holds: the load of the fullest ps grows only when
    no ps has room, and then the least loaded one takes the variable. The rule is that of
    best-fit bin packing (D. S. Johnson, "Near-Optimal Bin Packing Algorithms", PhD
    thesis, MIT, 1973), with bins that grow when they must.

    Cost: O(num_ps log num_ps) per variable.

    >>> from tfdist.placement.variable_spec import VariableSpec
    >>> best_fit = BestFit()
    >>> sizes = [400, 10, 100, 1]
    >>> [best_fit.place(VariableSpec("v", (n,), "uint8", 1), 4) for n in sizes]
    [0, 1, 1, 1]

    Args:
        num_tasks: As of `GreedyLoadBalancing`.
        load_fn: As of `GreedyLoadBalancing`.
    """

    def _place(self, loads: list[float]) -> list[int]:
        # A variable is split so that several ps share its load.
        if len(loads) > 1:
            return super()._place(loads)
        (load,) = loads
        fullest = max(self._loads)
        with_room = [ps for ps, own in enumerate(self._loads) if own + load <= fullest]
        if not with_room:
            return super()._place(loads)
        ps = max(with_room, key=self._loads.__getitem__)
        self._loads[ps] += load
        return [ps]
