"""The documents of a run directory: each read once, with the types that its name promises (docs/contract.md)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nsadiag.evidence.documents import results
from nsadiag.evidence.documents.files import read_evidence
from nsadiag.evidence.documents.shapes import (
    NOTHING,
    Shape,
    anything,
    between,
    count,
    either,
    flag,
    maybe,
    nested,
    number,
    record,
    rows,
    table,
    text,
    whole,
)
from nsadiag.evidence.documents.values import row_at, rows_of, value_of

T = TypeVar("T")
NAMED_FAULTS = 3
LONGEST_LINE = 4 << 20
HALF = r"\\u[dD][{}][0-9a-fA-F]{{2}}"
PAIR_OR_HALF = re.compile(
    f"(?P<pair>{HALF.format('89abAB')}{HALF.format('c-fC-F')})|{HALF.format('89a-fA-F')}"
)


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """The parts of a file that could not be used."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} {self.why}"


Gaps = list[Unfit]

# A process of this machine: what counts or signals it must not be given another number.
PID = between(1, 2**31)
TEXTS = rows(text)
CAUSE = nested(lambda cause: row_at(".exceptions:Cause", cause=maybe(cause)))
EXCEPTION = row_at(".exceptions:Raised", cause=maybe(CAUSE), hidden=maybe(CAUSE))
TENSORS = rows(
    record({"dtype": text, "tensors": count, "elements": count}, {"device": text, "requires_grad": flag})
)
MODEL = record(
    {},
    {"parameters": TENSORS, "buffers": TENSORS, "gradients": TENSORS, "training": rows(flag), "roots": TEXTS},
)
OPTIMIZER = record({}, {"type": text, "groups": rows(table(anything))})
PROCESS_ON_GPU = record({"pid": PID}, {"memory_mib": maybe(number), "sm_pct": maybe(number)})
DEVICE = record(
    {},
    {
        "index": count, "uuid": text, "name": text, "pci": text, "utilisation_pct": maybe(number),
        "memory_used_mib": maybe(number), "memory_total_mib": maybe(number), "processes": rows(PROCESS_ON_GPU),
        "power_w": maybe(number), "temperature_c": maybe(number), "sm_clock_mhz": maybe(number),
        "memory_clock_mhz": maybe(number), "throttled_by": rows(text), "uncorrected_ecc_errors": maybe(count),
    },
)  # fmt: skip
GPUS = record(
    {},
    {
        "devices": rows(DEVICE),
        "by": text,
        "driver": text,
        "xid_errors": rows(anything),
        "xid_gap": maybe(text),
    },
)
# By the name of the file. A document that is not here is a mapping, or a list where that is asked for.
DOCUMENTS: dict[str, Shape] = {
    **results.DOCUMENTS,
    "answers.json": row_at(".captures:Answers"),
    "confirmation.json": row_at("..rehearsal.confirmation:Confirmation"),
    "order.json": row_at("..rehearsal.touches:Hold"),
    "clock.json": record({}, {"mono_offset_ns": whole, "wall_offset_ns": whole, "rtt_ns": whole}),
    "ddp.json": rows(row_at(".training:WrappedModel")),
    "ends.json": table(row_at(".watch:End"), key=lambda rank: rank.isascii() and rank.isdigit() and len(rank) < 8),
    "exception.json": EXCEPTION,
    "fr.json": row_at("..recorder:Dump"),
    "gaps.json": rows(row_at(".captures:Gap")),
    "gpu.json": GPUS,
    "graph.json": row_at(".training:Graph"),
    "index.json": table(text),
    "job.json": record({}, {"id": maybe(either(text, count))}),
    "leaving.json": row_at(".exceptions:Leaving", handling=maybe(EXCEPTION)),
    "loaders.json": rows(row_at(".training:Loader")),
    "meta.json": row_at(".process:Meta"),
    "oom.json": row_at(".kernel:OomReport"),
    "parity.json": row_at(".first_steps:ControlComparison"),
    "proc.json": row_at(".kernel:KernelProcess"),
    "ray.json": row_at(".actors:RayJob"),
    "ras.json": row_at(".captures:NcclStatus"),
    "fix.json": row_at("..rehearsal.repair:Repair"),
    "rehearsal.json": row_at("..rehearsal.calls:Rehearsal"),
    "py_spy.json": rows(row_at(".python_stacks:PythonThread")),
    "settings.json": row_at(".training:Settings", model=MODEL, optimizer=maybe(OPTIMIZER)),
    "tasks.json": rows(row_at(".captures:Task")),
    "ungraded.json": row_at(".training:MissingNow"),
    "units.json": rows(row_at(".training:Unit")),
    "waits.json": row_at(".actors:ActorWaits"),
    "watch.json": row_at(".watch:Watch"),
    "wraps.json": rows(row_at(".training:Wrap")),
}  # fmt: skip
LINES: dict[str, Shape] = {
    "evaluated.jsonl": row_at(".training:Sums"),
    "gaps.jsonl": record({"gap": text}),
    "given.jsonl": row_at(".training:ModelInput"),
    "names.jsonl": record({"id": count, "name": text}),
    "parity.jsonl": row_at(".first_steps:FirstStep"),
    "paths.jsonl": row_at("..rehearsal.paths:Named"),
    "proof.jsonl": row_at("..rehearsal.proof:Kept"),
    "piles.jsonl": row_at(".training:Registered"),
    "raised.jsonl": EXCEPTION,
    "recomputed.jsonl": row_at(".training:Recomputed"),
    "replicas.jsonl": row_at(".training:Sums"),
    "samples.jsonl": row_at(".training:Sample"),
    "signals.jsonl": row_at(".exceptions:SentSignal"),
    "threads.jsonl": row_at(".training:StartedThread"),
    "ungraded.jsonl": row_at(".training:Missing"),
    "unheld.jsonl": row_at(".training:Unheld"),
    "invariants.jsonl": row_at(".operations:Observed"),
    "unnamed.jsonl": EXCEPTION,
    "unwaited.jsonl": row_at(".training:Unwaited"),
}  # fmt: skip


def read(path: Path, default: Any = None, gaps: Gaps | None = None) -> Any:
    """The document with what has the type that it should; `default` where there is none, or nothing of it has."""
    try:
        raw = read_evidence(path)
    except FileNotFoundError:
        return default
    except OSError as error:
        _note(gaps, path, error.strerror or "could not be read")
        return default
    try:
        document = parsed(raw)
    except (ValueError, RecursionError):
        _note(gaps, path, "is half written or not JSON")
        return default
    return fitting(path.name, document, default, gaps)


def fitting(name: str, document: Any, default: Any = None, gaps: Gaps | None = None) -> Any:
    """The document as one of that name has to be."""
    faults: list[str] = []
    if document is None:
        return default
    shape = DOCUMENTS.get(name) or (rows(anything) if isinstance(default, list) else table(anything))
    found = shape(document, faults)
    if found is NOTHING:
        _note(gaps, Path(name), f"does not hold what it should{_named(faults)}")
        return default
    if faults:
        _note(gaps, Path(name), f"holds what it should not{_named(faults)}")
    return found


def read_value(kind: type[T], path: Path, gaps: Gaps | None = None) -> T | None:
    """The document as a value; None where there is none."""
    document = read(path, None, gaps)
    return None if document is None else value_of(kind, document)


def read_rows(kind: type[T], path: Path, gaps: Gaps | None = None) -> tuple[T, ...]:
    """The rows of a list, or of a file of lines, as values."""
    return rows_of(kind, read_lines(path, gaps) if path.suffix == ".jsonl" else read(path, [], gaps))


def read_lines(path: Path, gaps: Gaps | None = None) -> list[Any]:
    """All whole rows that have the type that they should; a last line that its writer did not finish is skipped."""
    try:
        raw = read_evidence(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        _note(gaps, path, error.strerror or "could not be read")
        return []
    shape, faults, found = LINES.get(path.name, table(anything)), list[str](), []
    for line in raw.split(b"\n"):
        try:
            row = parsed(line) if len(line) <= LONGEST_LINE else None
        except (ValueError, RecursionError):
            continue
        if (fit := shape(row, faults)) is not NOTHING:
            found.append(fit)
        else:
            faults.append("a row")
    if faults:
        _note(gaps, path, f"holds what it should not{_named(faults)}")
    return found


def parsed(raw: bytes) -> Any:
    """The value. Raises ValueError and RecursionError."""
    text = raw.decode(errors="replace")
    # Half a pair is a string that cannot be written, printed, or put into a table.
    return json.loads(PAIR_OR_HALF.sub(_whole_pair, text) if "\\ud" in text or "\\uD" in text else text)


def _whole_pair(match: re.Match[str]) -> str:
    return match[0] if match["pair"] else "\\ufffd"


def _note(gaps: Gaps | None, path: Path, why: str) -> None:
    if gaps is not None:
        gaps.append(Unfit(name=path.name, why=why))


def _named(faults: list[str]) -> str:
    shown = list(dict.fromkeys(faults))
    more = ", ..." if len(shown) > NAMED_FAULTS else ""
    return f": {', '.join(shown[:NAMED_FAULTS])}{more}" if shown else ""
