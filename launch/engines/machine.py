"""Diagnoses of the machines that a job would run on: pure decisions."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from launch.diagnose.finding import Finding, Level
from launch.engines import preflight
from launch.engines.preflight import HostReport
from launch.secure import mode

OURS = ("tfdist", "launch", "tf_config")
"""The packages of this project; another one may have one of their names."""

_NOT_LISTED = ("all", "benchmark", "dev", "docs", "examples", "lint", "test")


def findings(
    reports: Mapping[str, HostReport], floors: Mapping[str, str]
) -> list[Finding]:
    """Decides what is wrong with each machine, and between them.

    Args:
        reports: What each machine has, by its name.
        floors: The lowest version of each package.
    """
    several = len(reports) > 1
    whole = "hosts" if several else next(iter(reports))
    wrong = preflight.problems(reports, ())
    found = [Finding(Level.WRONG, whole, "start", each) for each in wrong]
    known = {name: each for name, each in reports.items() if each.versions}
    if several and (wrong := preflight.insecure(known)):
        *wrong, advice = wrong
        found += [Finding(Level.WRONG, whole, "TLS", each, advice) for each in wrong]
    for name, report in known.items():
        rules = [_owners, _gpus, _ports, *([] if several else [_closed])]
        parts = [_versions(report, floors), *(rule(report) for rule in rules)]
        found += [Finding(each[0], name, *each[1:]) for part in parts for each in part]
    return found


_Part = Iterator[tuple[Level, str, str] | tuple[Level, str, str, str]]


def _versions(report: HostReport, floors: Mapping[str, str]) -> _Part:
    has = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield Level.OK, "versions", has
    for name in report.lacks:
        advice = "install tfdist for this Python: its own packages come with it"
        yield Level.WRONG, "versions", f"there is no {name}", advice
    for name, least in floors.items():
        version = report.versions.get(name)
        if version and _numbers(version) < _numbers(least):
            words = f"{name} must be {least} or later; received {version}"
            yield Level.WRONG, "versions", words, f"pip install '{name}>={least}'"


def _numbers(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)[:2]]


def _owners(report: HostReport) -> _Part:
    """Compares where Python finds our packages: all are in one place."""
    where = {name: (at or "nowhere") for name, at in report.origins.items()}
    roots = {name: at.rpartition(f"/{name}/")[0] for name, at in where.items()}
    for name, root in roots.items():
        if root != roots[OURS[0]]:
            yield (
                Level.WRONG,
                "packages",
                f"another package is called {name}: Python finds {where[name]} first",
                "give tfdist an environment of its own, or rename the file; see sys.path",
            )


def _gpus(report: HostReport) -> _Part:
    has, sees = report.gpus, report.visible_gpus
    if has and sees == 0:
        yield (
            Level.WRONG,
            "GPUs",
            f"TensorFlow uses none of {has} NVIDIA GPUs",
            "install the CUDA libraries (pip install 'tensorflow[and-cuda]'), and check "
            "CUDA_VISIBLE_DEVICES",
        )
    elif sees is not None:
        yield Level.OK, "GPUs", f"{has} NVIDIA GPUs, of which TensorFlow uses {sees}"


def _ports(report: HostReport) -> _Part:
    if report.ports:
        yield Level.OK, "ports", f"{len(report.ports)} of the ports tried are free"
    else:
        yield (
            Level.WRONG,
            "ports",
            "none of the ports tried is free",
            "end some programs",
        )


def _closed(report: HostReport) -> _Part:
    has = report.secure
    if has["open"]:
        yield (
            Level.WRONG,
            "open ports",
            f"tasks cannot close their ports to other machines ({has['open']})",
            "use --network=private, or a firewall",
        )
    elif has["stunnel"]:
        yield Level.OK, "TLS", f"ports can be closed; stunnel {has['version']}"
    else:
        yield (
            Level.OK,
            "TLS",
            "ports can be closed; there is no stunnel, which jobs on several hosts need",
            f"for these, {mode.INSTALL}, or --secure=private",
        )


def floors(requirements: Iterable[str]) -> dict[str, str]:
    """Returns the lowest version of each package that tfdist always needs.

    >>> floors(["keras>=3.12", "numpy", 'ray>=2.60; extra == "ray"'])
    {'keras': '3.12'}
    """
    found = (re.fullmatch(r"([\w.-]+)>=([\d.]+)", each) for each in requirements)
    return {each[1]: each[2] for each in found if each}


def extras(
    requirements: Sequence[str], has: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Returns the extras of tfdist that are installed, and those that are not.

    >>> extras(['ray>=2.60; extra == "ray"', 'x; extra == "y"'], lambda name: name == "x")
    (['y'], ['ray'])
    """
    needs: dict[str, list[str]] = {}
    for each in requirements:
        if match := re.fullmatch(r"([\w.-]+)[^\[]*; extra == [\"']([\w-]+)[\"']", each):
            needs.setdefault(match[2], []).append(match[1])
    known = [name for name in sorted(needs) if name not in _NOT_LISTED]
    installed = [name for name in known if all(map(has, needs[name]))]
    return installed, [name for name in known if name not in installed]
