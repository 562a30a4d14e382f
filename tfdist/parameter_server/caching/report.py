"""Reports of how much of each block has moved. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockMoves:
    """The number of times that a block has moved.

    Attributes:
        name: The weight's name.
        size: Its bytes; of a table, those of a row.
        fetched: How often a worker has fetched it, or one of its rows.
        pushed: How often a worker has sent a change of it, or of one of its rows.
        looked_up: How many rows of it steps have looked up; None for a whole block.
    """

    name: str
    size: int
    fetched: int
    pushed: int
    looked_up: int | None = None


@dataclass(frozen=True)
class WhenChangedReport:
    """The blocks that `exchange=WhenChanged(...)` has moved.

    Attributes:
        steps: The training steps of all workers that are here.
        blocks: The blocks that workers keep.
        set: Their optimizer slots: the last worker's values replace the others'.
        in_each_step: Variables that move in each step.
    """

    steps: int
    blocks: tuple[BlockMoves, ...] = ()
    set: tuple[str, ...] = ()
    in_each_step: tuple[str, ...] = ()

    @property
    def bytes_per_step(self) -> float:
        """The bytes of blocks that moved, both ways, per training step.

        Bytes of `evaluate` count, too.
        """
        moved = sum(each.size * (each.fetched + each.pushed) for each in self.blocks)
        return moved / self.steps if self.steps else 0.0

    @property
    def bytes_of_each_step(self) -> float:
        """The bytes of the same if each step reads and writes all its variables."""
        used = sum(
            each.size * (self.steps if each.looked_up is None else each.looked_up)
            for each in self.blocks
        )
        return 2 * used / self.steps if self.steps else 0.0

    @property
    def share(self) -> float:
        """`bytes_per_step`, of `bytes_of_each_step`."""
        each_step = self.bytes_of_each_step
        return self.bytes_per_step / each_step if each_step else 0.0

    def __str__(self) -> str:
        width = max([len("block"), *(len(each.name) for each in self.blocks)])
        lines = [
            f"exchange=WhenChanged: {self.steps} steps moved {self.share:.1%} of the bytes "
            "of weights and gradients",
            f"  {'block':{width}} {'bytes':>12} {'fetched':>9} {'pushed':>9} {'rows':>9}",
        ]
        lines += [
            f"  {each.name:{width}} {each.size:12,} {each.fetched:9,} {each.pushed:9,} "
            f"{'' if each.looked_up is None else format(each.looked_up, ','):>9}".rstrip()
            for each in self.blocks
        ]
        lines.append(f"  set, the last worker's value: {', '.join(self.set) or 'none'}")
        lines.append(f"  in each step: {', '.join(self.in_each_step) or 'none'}")
        return "\n".join(lines)
