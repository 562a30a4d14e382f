"""The settings of a command in a TOML file, whose keys are the names of flags."""

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from launch.engines.engine import of_other_packages
from launch.flags.values import Flags
from tf_config.commands import COMMANDS, CONSOLE, nearest
from tf_config.errors import Mistake
from tf_config.whole_file import write_whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPT, ARGUMENTS = "script", "args"
NOT_SETTINGS = frozenset({"config", "save_config", "dry_run", "help"})
"""Flags that say what this one command does; no file has them."""

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "list": ((list,), 'a list of texts, such as ["a", "b"]'),
    "text": ((str,), 'a text in quotes, such as "a"'),
}
_SECRET_NAME = (
    r"[\w-]*(?:passw(?:or)?d|secret|credential|(?:api|access|private)[_-]?key|"
    r"(?:access|api|auth|bearer|github|hf|hub|session|wandb)[_-]?token)s?"
)
# A name before a value, a flag with such a name, or a URL with a password. The name of a
# file with a secret is none.
_SECRET = re.compile(
    rf"(?:^|[\s,;\"'])({_SECRET_NAME}[\"']?\s*[:=]|--?{_SECRET_NAME}(?:\s|$)"
    r"|\w+://[^/@\s]*:[^/@\s]+@)",
    re.IGNORECASE,
)


class ConfigError(Mistake):
    """A file of settings is wrong; the message says how to correct it."""


def define(values: Flags) -> None:
    """Defines --config and --save_config."""
    values.text(
        "config",
        None,
        "TOML file with flags by their names, and with script and args. A flag on the "
        "command line wins, and so does a script with its arguments.",
    )
    values.text(
        "save_config",
        None,
        "File to write for --config: the flags that were given, without values of "
        "--env, the script and its arguments.",
    )


def configured(values: Flags, rest: list[str], usage: str) -> list[str]:
    """Gives flags the values of the file of --config, unless the command line has them.

    Args:
        values: The command's flags.
        rest: The script of the command line and its arguments, or nothing.
        usage: The command's help, which begins with its own name.

    Returns:
        The script and its arguments.

    Raises:
        ConfigError: If the file cannot be read, or a key or the type of a value is wrong.
        flags.Error: If a flag does not take its value.
    """
    try:
        text = Path(values.config).read_bytes().decode()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not in UTF-8"
        raise ConfigError(f"--config={values.config} cannot be read: {why}") from None
    command = re.search(rf"(?:launch\.|{CONSOLE} )(\w+)", usage)
    found = settings_in(text, values.config, command[1] if command else "", values)
    script = [found.pop(SCRIPT)] if SCRIPT in found else []
    script += found.pop(ARGUMENTS, [])
    if rest:  # The script of the command line may be no module.
        found.pop("module", None)
    for name, value in found.items():
        if not values[name].present:
            values[name].parse(value)
    return rest or script


def save(values: Flags, script: Sequence[str]) -> str:
    """Writes the file of --save_config, and returns a notice about it."""
    try:
        data = text_of(values, script).encode()
    except UnicodeEncodeError:
        raise ConfigError("--save_config: an argument is not in UTF-8") from None
    write_whole(values.save_config, data)
    names = [name for name, _, value in _env(values) if value]
    without = f", without the values of {', '.join(names)}" if names else ""
    return f"saved to {values.save_config}{without}"


def settings_in(text: str, path: str, command: str, values: Flags) -> dict[str, Any]:
    """Returns the settings that a file has for a command, by the names of its flags.

    A key is the name of a flag, `script` or `args`. Those in a table, such as `[slurm]`,
    are for the command of that name alone, and win.

    Args:
        text: What the file contains.
        path: Its name, for errors.
        command: The command's name, such as `slurm`.
        values: The command's flags.

    Raises:
        ConfigError: If the text is no TOML, or a key or the type of a value is wrong.
    """
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    tables = {key: value for key, value in found.items() if isinstance(value, dict)}
    for name in tables:
        if name not in (known := {**COMMANDS, **of_other_packages()}):
            near = nearest(name, known)
            raise ConfigError(f"{path}: [{name}] is not the name of a command.{near}")
    top = {key: value for key, value in found.items() if key not in tables}
    for key, value in (*top.items(), *tables.get(command, {}).items()):
        _check(key, value, path, values)
    merged = {**top, **tables.get(command, {})}
    if ARGUMENTS in merged and SCRIPT not in merged:
        raise ConfigError(f"{path}: {ARGUMENTS} needs the {SCRIPT} that gets them")
    return merged


def text_of(values: Flags, script: Sequence[str]) -> str:
    """Returns a file with the flags that were given, the script and its arguments.

    Of a variable of --env it has the name alone, since a value may be a secret.

    Raises:
        ConfigError: If anything else seems to be a secret.
    """
    found = {flag.name: flag.value for flag in given(values)}
    if "env" in found:
        found["env"] = [name for name, *_ in _env(values)]
    found |= {SCRIPT: script[0], ARGUMENTS: [*script[1:]]}
    for key, value in found.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and (secret := _SECRET.search(each)):
                raise ConfigError(
                    f"--save_config writes no secrets, and {secret[1].strip()!r} in {key} "
                    "seems to be one: give it to the script in a variable of the "
                    "environment, or write the file by hand"
                )
    return "".join(f"{key} = {_literal(value)}\n" for key, value in found.items())


def given(values: Flags) -> list[flags.Flag[Any]]:
    """Returns the flags that were given, on the command line or in a file."""
    # A short name is one more name of the same flag.
    known = {values[name].name: values[name] for name in values}
    return [
        flag
        for name, flag in known.items()
        if flag.present and name not in NOT_SETTINGS and flag.value is not None
    ]


def arguments_of(values: Flags, without: Collection[str]) -> list[str]:
    """Returns the flags that were given as a command line, but those of some names."""
    found = []
    for flag in given(values):
        value: Any = flag.value
        if flag.name in without:
            continue
        if flag.flag_type().startswith("multi "):
            found += [f"--{flag.name}={each}" for each in value]
        else:
            found.append(flag.serialize())
    return found


def _check(key: str, value: Any, path: str, values: Flags) -> None:
    names = {*values} - NOT_SETTINGS | {SCRIPT, ARGUMENTS}
    if key in NOT_SETTINGS & {*values}:
        raise ConfigError(f"{path}: {key!r} is for the command line alone: remove it")
    if key not in names or len(key) == 1:
        near = nearest(key, names) or (
            " A flag of other commands belongs to a table of their name, such as [slurm]"
        )
        raise ConfigError(f"{path}: there is no flag --{key}.{near}")
    kind = {SCRIPT: "text", ARGUMENTS: "list"}.get(key) or _kind(values[key])
    types, words = _KINDS[kind]
    fits = isinstance(value, types) and isinstance(value, bool) == (kind == "bool")
    texts = [value] if kind == "text" else value if kind == "list" and fits else []
    if not (fits and all(isinstance(each, str) and "\0" not in each for each in texts)):
        raise ConfigError(f"{path}: {key} must be {words}; received {_shown(value)}")


def _env(values: Flags) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in (values.env if "env" in values else [])]


def _kind(flag: flags.Flag[Any]) -> str:
    kind = flag.flag_type()
    if kind.startswith("multi ") or isinstance(flag.parser, flags.BaseListParser):
        return "list"
    return kind if kind in _KINDS else "text"


def _literal(value: Any) -> str:
    # TOML's texts, integers, booleans and lists are JSON's; its infinity is not.
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")


def _shown(value: Any) -> str:
    is_plain = isinstance(value, bool | int | float | str | list)
    return json.dumps(value, default=str) if is_plain else str(value)
