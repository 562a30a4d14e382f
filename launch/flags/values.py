"""The flags of a command, and how they are defined."""

from collections.abc import Sequence
from typing import Any

from absl import flags


class Flags(flags.FlagValues):
    """The flags of a command: a method per kind of value defines one."""

    def text(self, name: str, default: str | None, words: str) -> None:
        """Defines a flag whose value is a text."""
        flags.DEFINE_string(name, default, words, flag_values=self)

    def texts(self, name: str, default: list[str] | None, words: str) -> None:
        """Defines a flag whose value is a list, with commas between its texts."""
        flags.DEFINE_list(name, default, words, flag_values=self)

    def repeated(self, name: str, default: list[str], words: str) -> None:
        """Defines a flag that may be given several times."""
        flags.DEFINE_multi_string(name, default, words, flag_values=self)

    def integer(
        self, name: str, default: int | None, words: str, **bounds: Any
    ) -> None:
        """Defines a flag whose value is an integer, with absl's `lower_bound`."""
        flags.DEFINE_integer(name, default, words, flag_values=self, **bounds)

    def number(self, name: str, default: float, words: str, **bounds: Any) -> None:
        """Defines a flag whose value is a number, with absl's `lower_bound`."""
        flags.DEFINE_float(name, default, words, flag_values=self, **bounds)

    def switch(self, name: str, default: bool | None, words: str, **more: Any) -> None:
        """Defines a flag that is on or off."""
        flags.DEFINE_boolean(name, default, words, flag_values=self, **more)

    def choice(
        self, name: str, default: str | None, values: Sequence[str], words: str
    ) -> None:
        """Defines a flag whose value is one of several."""
        flags.DEFINE_enum(name, default, values, words, flag_values=self)
