"""Checks of what comes from inside a rank: the ring of events, start-up without a change to the job, torch's own recorders."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from nsadiag.agent.captures.flight_recorder import HANDLERS, PICKLE_HANDLERS
from nsadiag.agent.captures.python.traceback import from_within
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.checkup.check import Check, answered
from nsadiag.agent.checkup.patient import Patient
from nsadiag.evidence.layout import make_private_dir
from nsadiag.evidence.ring.reader import Pulse

START_S = 4.0
TORCH_S = 15.0  # its import takes seconds, more on a busy machine
# Each of these options keeps PYTHONPATH or sitecustomize, and so our probes, out.
KEEPS_US_OUT = re.compile(r"\s-[a-zA-Z]*[IES]")


def black_box(patient: Patient) -> Check:
    """A ring that the rank writes and that we read from outside."""
    name = "recorder"
    python = patient.report(START_S)["python"]
    if not patient.directory.blackbox.exists():
        return Check(
            name=name, status="missing", detail=f"Python {python} started without our probes", essential=True,
            remedy="is PYTHONPATH ignored (-I, -E, -S, PYTHONSAFEPATH), or has the disk no room?",
        )  # fmt: skip
    Pulse(patient.directory.blackbox)
    size = patient.directory.blackbox.stat().st_size / 2**20
    return Check(
        name=name,
        status="works",
        detail=f"Python {python} wrote it, {size:.1f} MiB, and it was read",
        essential=True,
    )


def start_up() -> Check:
    """Launchers whose first line starts Python with options that keep the probes out."""
    name, found = "Python options", []
    for program in ("torchrun", "accelerate", "deepspeed"):
        path = shutil.which(program)
        if path and KEEPS_US_OUT.search(_first_line(Path(path))):
            found.append(f"{program}: {_first_line(Path(path))}")
    if found:
        remedy = "start it as `python -m torch.distributed.run` or the like instead"
        return Check(name=name, status="limited", detail="; ".join(found), remedy=remedy)
    return Check(name=name, status="works", detail="no launcher here starts Python with -I, -E or -S")


def _first_line(path: Path) -> str:
    with path.open("rb") as file:
        line = file.readline(200).decode(errors="replace").strip()
    return line if line.startswith("#!") else ""


def worker_server(patient: Patient) -> list[Check]:
    """torch's server in a rank, and the flight recorders that it hands out."""
    name, recorder = "worker server", "flight recorder"
    try:
        told = patient.report(TORCH_S)
    except TimeoutError:
        busy = f"torch was not imported within {TORCH_S:g} s"
        return [
            Check(name=n, status="limited", detail=busy, remedy="try again when the machine is less busy")
            for n in (name, recorder)
        ]
    if told["torch"] is None:
        why = f"torch cannot be imported there: {told.get('error', '')}"
        remedy = "name the Python that your jobs run with: nsadiag doctor --python PATH"
        return [Check(name=n, status="missing", detail=why[:200], remedy=remedy) for n in (name, recorder)]
    version = f"torch {told['torch']}"
    try:
        offered = patient.target().server.handlers()
    except CaptureError as error:
        return [
            Check(name=n, status="missing", detail=f"{version}: {error}", remedy="torch 2.6 or later has it")
            for n in (name, recorder)
        ]
    return [
        Check(name=name, status="works", detail=f"{version} answers: {', '.join(sorted(offered))}"),
        answered("faulthandler", lambda: _faulthandler(patient)),
        _flight_recorder(recorder, told["torch"], offered),
    ]


def _faulthandler(patient: Patient) -> Check:
    """Stacks without any permission, and while the GIL is held."""
    target = patient.target()
    make_private_dir(target.directory.path)
    by = from_within(target)["by"]
    return Check(
        name="faulthandler",
        status="works",
        detail=f"stacks of all threads, by {by}" + (", also while the GIL is held" if by == "signal" else ""),
    )


def _flight_recorder(name: str, version: str, offered: frozenset[str]) -> Check:
    variable = recorder_variable(version)
    dumps = [handler for handler in (*HANDLERS, *PICKLE_HANDLERS) if handler in offered]
    if not dumps:
        return Check(
            name=name, status="limited", detail=f"torch {version} hands none out through its worker server",
            remedy="torch 2.13 records gloo as well; NCCL needs a torch with CUDA",
        )  # fmt: skip
    return Check(
        name=name, status="works", detail=f"{', '.join(dumps)}; size by {variable}, which nsadiag run sets"
    )


def recorder_variable(version: str) -> str:
    """The variable that turns the recorder on: renamed in 2.8, which warns of the old one."""
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]]
    return "TORCH_FR_BUFFER_SIZE" if numbers >= [2, 8] else "TORCH_NCCL_TRACE_BUFFER_SIZE"
