"""One thing that was found, and how grave it is."""

from dataclasses import asdict, dataclass
from enum import Enum


class Level(Enum):
    """How grave a finding is."""

    OK = "ok"
    UNKNOWN = "unknown"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        level: How grave it is.
        subject: A task, such as `ps:0`, or `cluster`.
        check: What was looked at.
        found: What was found, in words.
        advice: What to do about it; '' if it is well.
    """

    level: Level
    subject: str
    check: str
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as JSON can hold it."""
        return {**asdict(self), "level": self.level.value}
