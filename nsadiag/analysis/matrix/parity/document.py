"""A comparison as the documents tell it: parity.json of the cell that was compared, and a row of matrix.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nsadiag.analysis.matrix.parity import words
from nsadiag.analysis.matrix.parity.compare import Comparison
from nsadiag.evidence.layout import SCHEMA_VERSION

Document = Mapping[str, Any]
SHOWN = 3
CLOSE_CALL = 3.0  # times the tolerance: below it one is less sure
PHASES = {"loss": "forward", "update": "optimizer", "clipping": "optimizer"}
# Of parity.json: the rest is for the verdict.
IN_A_ROW = (
    "cell", "control", "judgement", "why", "what", "step", "steps", "precision", "tolerance", "loss", "parameters",
    "differing", "worst", "says",
)  # fmt: skip


def document_of(found: Comparison, *, cell: str, control: str, factors: str, source: str) -> Document:
    """parity.json. `factors`: the settings in which the two differ; `source`: the record, in the run directory."""
    differs = found.judgement == "differs"
    # By the model's order, not by size: the same failure keeps its place, and with it its signature.
    named = {d.parameter for d in found.differing}
    first = next((name for name in found.names if name in named), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "cell": cell,
        "control": control,
        "judgement": found.judgement,
        "why": found.why or None,
        "what": found.what,
        "step": found.step if differs else None,
        "steps": found.steps,
        "precision": found.precision,
        "tolerance": found.tolerance,
        "loss": {
            "cell": found.losses[0],
            "control": found.losses[1],
            "difference": found.loss_difference,
        },
        "parameters": len(found.names),
        "differing": len(found.differing),
        "worst": [
            {"parameter": d.parameter, "difference": _finite(d.relative), "ratio": d.ratio}
            for d in (found.differing[:SHOWN] or ([found.worst] if found.worst else []))
        ],
        "says": words.summary_of(found, control) if differs else None,
        "names": [d.parameter for d in found.differing],
        "parameter": first,
        "phase": PHASES.get(str(found.what), "backward") if differs else None,
        "claims": _claims(found, control) if differs else [],
        "fix": words.fix_of(found, factors) if differs else None,
        "confidence": _confidence(found) if differs else None,
        "source": source,
    }


def row_of(document: Document) -> Document:
    """As matrix.json shows it."""
    return {key: document.get(key) for key in IN_A_ROW}


def _confidence(found: Comparison) -> float:
    if found.worst is None or not found.tolerance or found.what == "loss":
        return 0.95
    return 0.95 if found.worst.relative > CLOSE_CALL * found.tolerance else 0.75


def _claims(found: Comparison, control: str) -> list[str]:
    ours, theirs = (words.loss_text(loss) for loss in found.losses)
    agree = " (they agree)" if found.loss_difference is not None and found.what != "loss" else ""
    factors = {d.parameter: f", {d.ratio:.3g} times the control's" for d in found.differing if d.scaled}
    told = [
        f"step {found.step}: loss {ours}, in {control} {theirs}{agree}",
        *(
            f"step {found.step}: {d.parameter} is off by {words.size(d)}{factors.get(d.parameter, '')}"
            for d in found.differing[:SHOWN]
        ),
        words.scope(found) if found.differing else "",
        f"tolerated: {found.tolerance:.1e}, for {found.precision}" if found.tolerance else "",
    ]
    return [claim for claim in told if claim]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
