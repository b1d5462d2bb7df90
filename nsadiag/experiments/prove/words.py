"""A proof in words: the sentence of the verdict, parity.json of the ranks' run, proof.json."""

from __future__ import annotations

import math
from typing import Any

from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.evidence.phrases import count
from nsadiag.evidence.spans import shortened
from nsadiag.experiments.prove.compare import Pair, Proof
from nsadiag.experiments.prove.naming import Name, name_of
from nsadiag.experiments.prove.record import Run

SHOWN = 3
SECOND = {
    "start": "load the weights that were saved",
    "data": "save and restore the sampler's or generator's place: its epoch, and the batches of it that are over",
    "rate": "save and restore the schedule's state",
}
PHASES = {
    "start": "forward",
    "data": "data",
    "rate": "optimizer",
    "output": "forward",
    "gradient": "backward",
    "update": "optimizer",
}
OTHERWISE = "Compare the two runs there: everything before it is equal."


def document(proof: Proof, ranks: Run, *, control: str = "one process") -> dict[str, Any]:
    """parity.json, for the verdict on the ranks' run; proof.json has the same, and more."""
    differs = proof.judgement == "differs"
    name = name_of(proof, ranks) if differs and proof.pairs else None
    ordered = in_order(proof, ranks)
    return {
        "schema_version": SCHEMA_VERSION,
        "cell": count(len(ranks.ranks), "rank"),
        "control": control,
        "judgement": proof.judgement,
        "why": proof.why or None,
        "what": proof.what,
        "step": proof.steps if differs else None,
        "steps": proof.steps,
        "precision": proof.precision or None,
        "unit": proof.unit or None,
        "largest": _finite(proof.largest),
        "parameters": len({pair.name for pair in proof.pairs}),
        "differing": len({pair.name for pair in proof.differing}),
        "worst": [{"parameter": p.name, "rank": p.rank, "difference": _finite(p.relative), "bound": p.bound} for p in ordered[:SHOWN]],
        "says": summary(proof, ordered, name, control) if differs else None,
        "parameter": ordered[0].name if ordered and not proof.output else None,
        "module": proof.output.module if proof.output else None,
        "phase": PHASES["output" if proof.output else str(proof.what)] if differs else None,
        "place": _place(proof, ranks) if differs else None,
        "claims": _claims(proof, ordered) if differs else [],
        "fix": _fix(proof, name) if differs else None,
        "confidence": 0.95 if differs else None,
        "source": f"ranks/{ranks.ranks[0].number:05d}/proof.jsonl" if ranks.ranks else "",
        "remarks": list(proof.remarks),
    }  # fmt: skip


def in_order(proof: Proof, ranks: Run) -> list[Pair]:
    """The differences, each parameter once, in the model's order."""
    order = {part.name: n for n, part in enumerate(proof.layout.parts.values())} if proof.layout else {}
    found: dict[str, Pair] = {}
    for pair in sorted(proof.differing, key=lambda p: (order.get(p.name, 0), -p.relative)):
        found.setdefault(pair.name, pair)
    return list(found.values())


def summary(proof: Proof, ordered: list[Pair], name: Name | None, control: str) -> str:
    """One sentence."""
    when = f"from step {proof.steps + 1} {'after the restart' if proof.after else 'on'}"
    if not ordered:
        return f"Not what {control} computes, {when}: {proof.why}."
    what = "its gradient" if proof.what == "gradient" else "what the optimizer makes of it"
    of = len({pair.name for pair in proof.pairs})
    scope = f"{count(len(ordered), 'parameter')} of {of}"
    named = f": {name.says}" if name else f": {what} is off by {size(ordered[0])}"
    first = proof.output.module if proof.output else ordered[0].name
    return f"Not what {control} computes, {when}, first in {first}{named} ({scope})."


def size(pair: Pair) -> str:
    if math.isinf(pair.relative):
        return "no number" if pair.other.any() else "all of it, where there should be nothing"
    if pair.relative > 10:
        return f"{pair.relative:.0f} times its size"
    return f"{pair.relative:.0%}" if pair.relative >= 0.01 else f"{pair.relative:.1e}"


def _fix(proof: Proof, name: Name | None) -> str:
    if (advice := SECOND.get(str(proof.what))) is not None:
        return f"{advice[0].upper()}{advice[1:]}."
    return name.fix if name else OTHERWISE


def _claims(proof: Proof, ordered: list[Pair]) -> list[str]:
    what = "gradient" if proof.what == "gradient" else "update"
    told = [f"step {proof.steps + 1}: the {what} of {p.name} is off by {size(p)} on rank {p.rank}; tolerated: {p.bound:.1e}" for p in ordered[:SHOWN]]  # fmt: skip
    if not ordered:
        return [proof.why]
    wrong = {pair.name for pair in ordered}
    right = list(dict.fromkeys(pair.name for pair in proof.pairs if pair.name not in wrong))
    agree = [f"{shortened(right, SHOWN)} {'agrees' if len(right) == 1 else 'agree'}"] if right else []
    before = [f"{count(proof.steps, 'step')} before agree"] if proof.steps else []
    forward = [f"step {proof.steps + 1}: the output of {proof.output.module} is off by {proof.output.relative:.1%} on rank {proof.output.rank}"] if proof.output else []  # fmt: skip
    return [*forward, *told, *agree, *before, f"both were given the same {proof.unit}", *proof.remarks]


def _place(proof: Proof, ranks: Run) -> str | None:
    """The line behind which it is wrong: of backward where forward or what backward leaves differs, else of the optimizer's step.

    After a restart that begins with something else it is the line that saved.
    """
    if proof.what in SECOND:
        return next((row.place for rank in ranks.ranks for row in rank.all_of("saved") if row.place), None)
    guilty = next(
        (rank for rank in ranks.ranks for pair in proof.differing if pair.rank == rank.number), None
    )
    rows = guilty.rows("loss" if proof.output or proof.at_backward else "step", proof.steps) if guilty else []
    return next((row.place for row in rows if row.place), None)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
