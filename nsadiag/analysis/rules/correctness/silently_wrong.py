"""Silently wrong: checkpointing recomputed other modules than its forward ran; a control computes something else;
the replicas parted; what is trained is not finite; the optimizer holds another layer than the model has; or no gradient
reaches a part of every block.

The usual cause is a loop variable bound late: `checkpoint(lambda x: block(x), x)` in a loop over blocks recomputes
the last block every time. The loss falls, and every block but the last is trained by wrong gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsadiag.analysis.case import Tables
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.rules.correctness.dead_gradients import no_gradient
from nsadiag.analysis.rules.correctness.evaluation_copies import evaluated
from nsadiag.analysis.rules.correctness.nonfinite import not_finite
from nsadiag.analysis.rules.correctness.replicas.replica_drift import parted
from nsadiag.analysis.rules.correctness.stale_optimizer import unheld
from nsadiag.analysis.rules.correctness.unstable_hash import salted
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Evidence, Place, Strength, Where


def _names(modules: list[str | None]) -> str:
    return ", ".join(str(m) for m in modules) or "no module"


def _ran(row: dict[str, Any]) -> tuple[str, str]:
    """What ran in forward and in backward: modules by their calls; else parameters by the variables that named them."""
    rebound: dict[str, list[str]] = row.get("rebound") or {}
    if row["forward"] != row["recomputed"][: len(row["forward"])] or not rebound:
        return _names(row["forward"]), _names(row["recomputed"])
    first, second = (", ".join(f"{n} = {names[side]}" for n, names in rebound.items()) for side in (0, 1))
    return f"{row['function']} with {first}", f"with {second}"


def _parameter(row: dict[str, Any]) -> str | None:
    """The one that backward should have used, where no module says it."""
    rebound = row.get("rebound") or {}
    return None if row["forward"] else next((str(names[0]) for names in rebound.values()), None)


def _place(row: dict[str, Any]) -> Place | None:
    """Where the function was handed to checkpoint; failing that, where it is defined."""
    file, line, function = [*str(row.get("place") or "").rsplit(":", 2), "", ""][:3]
    if not line.isdigit():
        file, _, line = str(row.get("defined") or "").rpartition(":")
        function = str(row.get("function") or "")
    return locations.place(file, int(line), function) if line.isdigit() else None


def silently_wrong(cell: CellEvidence, tables: Tables) -> Iterator[Draft | Declined]:
    yield from _recomputed(cell)
    yield from _unlike_its_control(cell)
    yield from parted(cell, tables)
    yield from not_finite(cell, tables)
    yield from unheld(cell)
    yield from evaluated(cell)
    yield from salted(cell)
    yield from no_gradient(cell)
    yield Declined("no replica, gradient or recomputation that was compared differs")


def _recomputed(cell: CellEvidence) -> Iterator[Draft]:
    wrong: list[RankEvidence] = [rank for rank in cell.ranks if rank.recomputed]
    if not wrong:
        return
    rank = wrong[0]
    row = rank.recomputed[0]
    others = len({_ran(r)[0] for r in rank.recomputed})
    forward, again = _ran(row)
    yield Draft(
        strength=Strength.PROVEN,
        summary=(
            f"Gradients are wrong: activation checkpointing ran {forward} in forward and {again} in its place in "
            f"backward{f' (and {others - 1} more like it)' if others > 1 else ''}; nothing else would have told you."
        ),
        guilty_ranks=tuple(r.rank for r in wrong),
        where=Where(
            module=row["forward"][0] if row["forward"] else None,
            parameter=_parameter(row),
            step=row["step"],
            phase="backward",
        ).at(_place(row)),
        evidence=tuple(
            Evidence(
                claim=f"{r['function']}: {_ran(r)[0]} in forward, {_ran(r)[1]} in backward, step {r['step']}",
                source=f"{rank.source}/recomputed.jsonl",
            )
            for r in rank.recomputed[:3]
        )
        + _claims(cell),
        fix=(
            "Bind what it uses when the checkpoint is made: pass the block itself, checkpoint(block, x), or write "
            "`lambda x, block=block: block(x)`; a lambda in a loop looks `block` up when backward runs it."
        ),
    )


def _unlike_its_control(cell: CellEvidence) -> Iterator[Draft]:
    told = cell.parity
    if told.get("judgement") != "differs":
        return
    parameter = told.get("parameter")
    yield Draft(
        strength=Strength.within(float(told["confidence"])),
        summary=told["says"],
        where=Where(
            parameter=parameter,
            module=parameter.rpartition(".")[0] or None if parameter else None,
            step=told["step"],
            phase=told["phase"],
        ),
        evidence=_claims(cell),
        fix=told["fix"],
    )


def _claims(cell: CellEvidence) -> tuple[Evidence, ...]:
    """What a comparison with the control has found, where there was one."""
    if cell.parity.get("judgement") != "differs":
        return ()
    return tuple(Evidence(claim=c, source=cell.parity["source"]) for c in cell.parity["claims"])


RULE = Rule(
    name="silently_wrong",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="activation checkpointing recomputed other modules than its forward ran; or sums of the parameters differ between replicas that were meant to be equal: wrapped in DDP (also what was put into its model, or unfrozen, after the wrap; guilty is who left out an optimizer step, by a branch or a gradient scaler that saw its own gradients alone, did not load its state, was given another learning rate by a scheduler (also where that was behind the last look at the sums), or alone has parameters that something besides it writes into, where it can be told; what the same optimizer trains beside DDP, at 60 %), or their gradients averaged by hand in every step, whole, one by one or in buckets, or most of them kept equal in whatever way, before the optimizer uses them (models that are averaged when it is done, or now and then, part on purpose); or a buffer that the model saves does, where DDP broadcasts none; or a parameter that was finite is NaN or infinite, or every loss is to the end (known of losses on the CPU); or layers that replaced others after the optimizer was made are in no optimizer and never change; or all ranks evaluate a copy that differs between them; or each rank picks its share of the data by a `hash()` of a text, which its process salts for itself (at 70 %); or, of what the probe `parity` records, weights that got no gradient but rounding at each of the first three steps, in every block of a list of blocks whose other weights are trained (at 60 %: it may be meant), or a loss, gradients or updates that differ from a control's in a matrix (docs/parity.md)",
    fix="Reduce every gradient before the optimizer uses it, and change parameters on all ranks alike.",
    check=silently_wrong,
    needs=("black_boxes",),
    explained_by=("async_work_not_waited",),
    confused_with=("healthy",),
)
