"""One finding of the doctor."""

from dataclasses import asdict, dataclass
from enum import Enum


class Level(Enum):
    """The severity of a finding."""

    OK = "ok"
    UNKNOWN = "unknown"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        level: How serious it is.
        subject: A task, such as `ps:0`, or `cluster`.
        check: The subject of the check.
        found: The result, in words.
        advice: The remedy; '' if nothing is wrong.
    """

    level: Level
    subject: str
    check: str
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """Returns the finding as a JSON object."""
        return {**asdict(self), "level": self.level.value}


def wrong(subject: str, check: str, found: str, advice: str) -> Finding:
    """Returns something that is wrong, and its remedy."""
    return Finding(Level.WRONG, subject, check, found, advice)


def unknown(subject: str, check: str, found: str, advice: str) -> Finding:
    """Returns something that could not be found out, and how to do so by hand."""
    return Finding(Level.UNKNOWN, subject, check, found, advice)
