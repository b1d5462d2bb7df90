"""`nsadiag demo`: a run of a job that fails on purpose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nsadiag.commands.faults import Fault, find_fault, launcher
from nsadiag.commands.output import need
from nsadiag.commands.run import RunRequest
from nsadiag.errors import UsageError

# A guard against a job that does neither what it promises nor anything else. The first import of torch on a
# busy machine has taken two minutes, and the fault comes after it.
HARD_LIMIT_S = 600.0


def demo_request(wanted: str, *, out: Path | None, force: bool, quiet_stdout: bool) -> RunRequest:
    """The run that shows a fault, by its script's name or its class. Raises UsageError if there is none."""
    fault = find_fault(wanted)
    need("torch", "demo")
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
    if "--on-hang" in given:
        found["on_hang"] = given.pop("--on-hang")
    assert not given, f"{fault.name} asks for options that demo does not pass on: {given}"
    return found
