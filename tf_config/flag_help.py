"""The flags of a command as text: one style for every command of `launch` and `tfdist`."""

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tf_config.cluster import JOBS

_WIDTH = 80
_DEEP = " " * 6
_NOUN = re.compile(r"(?:The |TOML |YAML )?(file|dir|seconds|label=value)", re.I)
_VALUES = {"env": "NAME=VALUE", **{f"{job}_hosts": "HOST:PORT,..." for job in JOBS}}


def describe(flags: Any, groups: Mapping[str, str] | None = None) -> str:
    """Returns what each flag of a command does, and its default.

    Args:
        flags: The flags, by name, as absl keeps them: each has `name`, `short_name`,
            `help`, `default`, `boolean` and `parser`.
        groups: The names of flags that belong together, with spaces between them, by the
            group's title. What is in none of them comes last, as `advanced`.
    """
    known = {flag.name: flag for flag in (flags[name] for name in flags)}
    named = {title: names.split() for title, names in (groups or {}).items()}
    rest = [name for name in known if not any(name in each for each in named.values())]
    named["advanced"] = rest
    sections = {
        title: [known[name] for name in names if name in known]
        for title, names in named.items()
    }
    found = {title: flags for title, flags in sections.items() if flags}
    return "\n\n".join(
        "\n".join([f"{title if len(found) > 1 else 'flags'}:", *map(_lines, flags)])
        for title, flags in found.items()
    )


def normalized(
    arguments: Sequence[str], flags: Any, *, has_script: bool = False
) -> list[str]:
    """Returns arguments in which flags are spelled as they are defined.

    `-h` becomes `--help`, and a dash in the name of a known flag an underscore.

    Args:
        arguments: The arguments, without the command itself.
        flags: The flags, by name, as absl keeps them: each has `boolean`.
        has_script: Whether the first argument that is no flag is a script. It and what
            follows, which are its flags, stay as they are.
    """
    found: list[str] = []
    for i, argument in enumerate(arguments):
        is_value = bool(found) and _waits_for_value(found[-1], flags)
        is_script = has_script and not (is_value or argument.startswith("-"))
        if is_script or argument == "--":
            return [*found, *arguments[i:]]
        found.append(argument if is_value else _normalized(argument, flags))
    return found


def _normalized(argument: str, flags: Any) -> str:
    if argument == "-h":
        return "--help"
    name, equals, value = argument[2:].partition("=")
    known = name.replace("-", "_")
    if known.startswith("no_") and known[3:] in flags:
        known = f"no{known[3:]}"
    if argument.startswith("--") and {known, known.removeprefix("no")} & {*flags}:
        return f"--{known}{equals}{value}"
    return argument


def _waits_for_value(argument: str, flags: Any) -> bool:
    name = argument.lstrip("-")
    is_flag = argument.startswith("-") and name in flags
    return is_flag and not flags[name].boolean


def filled(text: str) -> str:
    """Returns a help with lines of equal length, after names in it have been replaced.

    Examples, which are indented by four spaces, stay as they are.
    """
    return "\n\n".join(map(_block, text.split("\n\n")))


def _block(text: str) -> str:
    found = []
    for indent, lines in itertools.groupby(text.split("\n"), _indent):
        kept = [*lines]
        if indent in ("", _DEEP):
            kept = [_fill(" ".join(map(str.strip, kept)), indent)]
        found += kept
    return "\n".join(found)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _fill(words: str, indent: str) -> str:
    width = _WIDTH - len(indent)
    lines = textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=False)
    return textwrap.indent("\n".join(lines), indent)


def _lines(flag: Any) -> str:
    short = f"-{flag.short_name}, " if flag.short_name else ""
    # absl says of a flag that may be repeated that it may, and lists what it may be.
    words = re.sub("^<.*?>: ", "", flag.help.partition(";\n")[0])
    default = flag.default
    if default not in (None, "", []) and default is not False:
        default = ",".join(default) if isinstance(default, list) else default
        words += f" Default: {default}."
    return f"  {short}--{_with_placeholder(flag)}\n{_fill(words, _DEEP)}"


def _with_placeholder(flag: Any) -> str:
    """Returns a flag as it is typed: `num_ps=N`, `[no]chief`, `cpus_per_ps=CPUS`."""
    if flag.boolean:
        return flag.name if flag.name == "help" else f"[no]{flag.name}"
    allowed = flag.parser.syntactic_help
    noun = _NOUN.match(flag.help)
    of_each = flag.name.partition("_per_")[0]
    value = (noun[1] if noun else of_each.rpartition("_")[2]).upper()
    value = _VALUES.get(flag.name, value)
    if "integer" in allowed:
        value = "N"
    elif "list" in allowed:
        value += ",..."
    return f"{flag.name}={'|'.join(getattr(flag.parser, 'enum_values', [value]))}"
