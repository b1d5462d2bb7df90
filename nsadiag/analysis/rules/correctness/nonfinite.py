"""A job that completes with NaN or infinity in its parameters or losses: the step and rank at which it began."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase

TO_THE_END = 3  # least number of losses: a skipped batch does no harm


def nonfinite(case: Case) -> Iterator[Draft | Declined]:
    """Parameters that were finite at first, or losses that are not finite from some step to the end."""
    if case.cell.stopped == "hang" or any(r.exception for r in case.cell.ranks):
        return
    broken = {r.rank: row for r in case.cell.ranks if (row := _broken(r))}
    losses = {r.rank: found for r in case.cell.ranks if (found := _first_loss(case, r.rank))}
    ends = [r.rank for r in case.cell.ranks if r.rank in losses and losses[r.rank][2] >= TO_THE_END]
    if not broken and not ends:
        looks = sum(len(r.replicas) for r in case.cell.ranks)
        yield Declined(
            f"every recorded loss is finite, and so are the parameters at {looks} snapshots of their sums"
        )
        return
    first = min((step for step, _, _ in losses.values()), default=None)
    if broken and first is not None and first > min(step for step, _ in broken.values()):
        first = None  # the parameters were broken before the loss
    guilty = [n for n, (step, _, _) in losses.items() if step == first] or sorted(broken)
    first_bad = broken.get(guilty[0]) or next(iter(broken.values()), None)
    evidence: Claims = {}
    if first_bad:
        source = f"ranks/{min(broken):05d}/replicas.jsonl"
        evidence[f"{first_bad[1]} is not finite after step {first_bad[0]}"] = source
    for n in guilty[:3]:
        if n in losses:
            claim = f"the loss of rank {n} was not finite when its backward of step {losses[n][0]} began"
            evidence[claim] = f"ranks/{n:05d}/blackbox.bin"
    yield Draft(
        strength=Strength.CONCLUSIVE if broken else Strength.STRONG,
        summary=_summary(case.cell, guilty, first, first_bad),
        guilty_ranks=tuple(guilty),
        where=Where(
            parameter=first_bad[1] if first_bad else None,
            step=first if first is not None else first_bad[0] if first_bad else None,
            phase="forward" if first is not None else None,
        ).at(losses[guilty[0]][1] if first is not None else None),
        evidence=evidence,
    )


def _summary(
    cell: CellEvidence, guilty: list[int], first: int | None, first_bad: tuple[int, str] | None
) -> str:
    everyone = len(guilty) == cell.world_size
    whose = "every rank" if everyone else named(cell, guilty)
    if first is None:
        return f"Parameters are not finite after step {first_bad[0] if first_bad else 0}: everything trained since is NaN."
    spread = (
        "and the optimizer carried it into the parameters" if first_bad else "and so is every loss after it"
    )
    return f"The loss of {whose} is NaN or infinite at step {first}, {spread}."


def _broken(rank: RankEvidence) -> tuple[int, str] | None:
    """The first step after which a parameter is no longer finite, and its name."""
    if not rank.replicas:
        return None
    began = [math.isfinite(total) for _, _, total, _ in rank.replicas[0].parameters]
    for row in rank.replicas[1:]:
        for fine, (name, _, total, _) in zip(began, row.parameters, strict=False):
            if fine and not math.isfinite(total):
                return row.step, name
    return None


def _first_loss(case: Case, rank: int) -> tuple[int, Place | None, int] | None:
    """The step and line of the first non-finite loss of an unbroken series up to the end, and its length."""
    events = case.events
    mine = events[(events["rank"] == rank) & events.kind.isin((Kind.BACKWARD, Kind.STEP))]
    step, found, last = 0, None, 0
    for kind, phase, number, site in mine[["kind", "phase", "a", "site"]].itertuples(index=False):
        if kind == Kind.STEP:
            step = int(number)
        elif phase == Phase.BEGIN and number == 1:
            found = found or (step, locations.of_text(str(site)))
            last += 1
        elif phase == Phase.BEGIN:
            last = 0
    return (*found, last) if found else None


RULE = Rule(
    name="nonfinite",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="A parameter that was finite is NaN or infinite; or every loss is, from one step to the end (recorded for losses on the CPU)",
    fix="Run with torch.autograd.set_detect_anomaly(True) to find the operation, check that rank's batch of that step, and let all ranks skip a step together if its loss is not finite.",
    check=nonfinite,
    needs=("black_boxes",),
    explained_by=("replica_drift",),
    confused_with=("healthy",),
)
