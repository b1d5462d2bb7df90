"""`nsadiag demo` and `nsadiag list`: jobs that fail on purpose, and what there is to look at them with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nsadiag.commands.faults import Fault, faults, find_fault, headline, launcher
from nsadiag.commands.run import RunRequest
from nsadiag.errors import UsageError
from nsadiag.source.model import docstring_of, imported_by

HARD_LIMIT_S = 120.0
PACKAGE = Path(__file__).resolve().parents[1]


def demo_request(wanted: str, *, out: Path | None, force: bool, quiet_stdout: bool) -> RunRequest:
    """The run that shows a fault, by its script's name or its class. Raises UsageError if there is none."""
    fault = find_fault(wanted)
    if fault.needs == "gpu" and not any(Path("/proc/driver/nvidia/gpus").glob("*")):
        raise UsageError(f"{fault.name} needs a GPU, and there is none here", "nsadiag list --faults")
    return RunRequest(
        command=[sys.executable, *launcher(fault), str(fault.script)],
        out=out,
        force=force,
        patience_s=0.0,  # what fails on purpose need not be waited for
        die_with_me=True,
        quiet_stdout=quiet_stdout,
        **run_options(fault),
    )


def run_options(fault: Fault) -> dict[str, Any]:
    """Fields of a RunRequest from the options that the script asks for."""
    given = dict(zip(fault.options[::2], fault.options[1::2], strict=True))
    found: dict[str, Any] = {"timeout_s": float(given.pop("--timeout", HARD_LIMIT_S))}
    if "--stall-after" in given:
        found["stall_after_s"] = float(given.pop("--stall-after"))
    if "--probes" in given:
        found["probes"] = given.pop("--probes")
    assert not given, f"{fault.name} asks for options that demo does not pass on: {given}"
    return found


def parts() -> dict[str, dict[str, str]]:
    """Everything built in, by kind: the purpose of each name."""
    from nsadiag.agent.captures import CAPTURES, NODE_CAPTURES
    from nsadiag.analysis.rules.registry import CLASSES, RULES
    from nsadiag.engines.registry import engines
    from nsadiag.evidence.probes import PROBE_NAMES
    from nsadiag.reports import REPORTERS

    files = _probe_files()
    return {
        "probes": {name: _purpose(files[name]) for name in PROBE_NAMES},
        "captures": {name: headline(capture.__doc__) for name, capture in (CAPTURES | NODE_CAPTURES).items()},
        "detectors": {r.name: headline(sys.modules[r.check.__module__].__doc__) for r in RULES},
        "engines": engines(),
        "reporters": {name: headline(sys.modules[r.__module__].__doc__) for name, r in REPORTERS.items()},
        "classes": dict(CLASSES),
    }


def part_table() -> list[str]:
    """Lines to read: each kind, and below it its parts."""
    lines = []
    for kind, entries in parts().items():
        lines += [kind, *(f"  {name:32}{text}".rstrip() for name, text in entries.items())]
    return lines


def fault_table() -> list[str]:
    """Lines to read: each class, and below it its scripts, with how many ranks they take and what happens in them."""
    lines: list[str] = []
    for fault in faults():
        if fault.classes[0] not in lines:
            lines.append(fault.classes[0])
        ranks = 1 if fault.launch == "python" else int(fault.launch.split()[-1])
        needs = f", needs {fault.needs}" if fault.needs else ""
        lines.append(f"  {fault.name:44}{ranks} rank{'s' * (ranks > 1)}{needs}  {fault.what}")
    return lines


def _probe_files() -> dict[str, Path]:
    """The module of each probe, by the registry's imports: it cannot be imported where there is no torch."""
    registry = (PACKAGE / "worker/probes/__init__.py").read_text(encoding="utf-8")
    return {
        name: PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        for name, module in imported_by(registry).items()
    }


def _purpose(path: Path) -> str:
    """The purpose of a module, read without importing it: probes need torch."""
    return headline(docstring_of(path.read_text(encoding="utf-8")))
