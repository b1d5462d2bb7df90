"""`nsadiag invariants RUN`: the invariants of a good run, to keep, and what of them a later run breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import is_run_directory, load_cell
from nsadiag.analysis.relations.invariants.summary import Broken, broken, facts_of
from nsadiag.commands.analyze import is_matrix
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import SCHEMA_VERSION, read_json
from nsadiag.evidence.phrases import count


def document_of(path: Path) -> dict[str, Any]:
    """The invariants of a run, as they are kept. Raises UsageError where it is no run, or has none."""
    if is_matrix(path) or not is_run_directory(path):
        raise UsageError(
            f"{path} is no run directory", "give the directory of one run, or of one cell of a matrix"
        )
    case = Case(load_cell(path))
    facts = facts_of(case)
    if not facts:
        raise UsageError(
            f"no step was recorded on all ranks of {path}",
            "run it on two ranks or more, with --probes light,invariants",
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "invariants",
        "world_size": case.cell.world_size,
        "facts": facts,
    }


def against(path: Path, kept: Path) -> list[Broken]:
    """Invariants in that file that a run breaks. Raises UsageError."""
    document = read_json(kept)
    if not isinstance(document, dict) or document.get("kind") != "invariants":
        raise UsageError(f"{kept} holds no invariants", f"write them with: nsadiag invariants RUN > {kept}")
    facts = document.get("facts")
    return broken(
        facts if isinstance(facts, dict) else {}, json.loads(json.dumps(document_of(path)["facts"]))
    )


def as_json(found: list[Broken]) -> str:
    rows = [each._asdict() for each in found]
    return json.dumps({"schema_version": SCHEMA_VERSION, "broken": rows}, indent=1)


def text_of(found: list[Broken]) -> str:
    if not found:
        return "All invariants are kept."
    lines = [f"{count(len(found), 'invariant')} broken:"]
    lines += [f"  {b.fact}: {_shown(b.found)}, was {_shown(b.kept)}" for b in found]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
