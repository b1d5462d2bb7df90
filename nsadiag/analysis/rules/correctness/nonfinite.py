"""A job that completes with NaN or infinity in its parameters or losses: the step and rank at which it began."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.relations.replica_sums import not_finite
from nsadiag.analysis.rules.correctness.silent_error import silent_error, whose
from nsadiag.analysis.rules.drafts import recorder_of
from nsadiag.analysis.rules.reasons import everyone
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase

TO_THE_END = 3  # least number of losses: a skipped batch does no harm


def nonfinite(case: Case) -> Iterator[Draft | Declined]:
    """Parameters that were finite at first, or losses that are not finite from some step to the end."""
    if not ran_well(case.cell):
        return
    broken = {r.rank: row for r in case.cell.ranks if (row := not_finite(r))}
    losses = {r.rank: found for r in case.cell.ranks if (found := _first_loss(case, r.rank))}
    if not broken and not any(length >= TO_THE_END for _, _, length in losses.values()):
        yield Declined(f"on {everyone(case.cell)} each loss and each sum over parameters was finite")
        return
    first = min((step for step, _, _ in losses.values()), default=math.inf)
    by_loss = first <= min((step for step, _ in broken.values()), default=math.inf)
    guilty = [n for n, (step, _, _) in losses.items() if step == first] if by_loss else sorted(broken)
    after, parameter = broken.get(guilty[0]) or next(iter(broken.values()), (0, None))
    evidence: Claims = {}
    if parameter:
        file = f"{case.cell.rank(min(broken)).source}/replicas.jsonl"
        evidence[f"{parameter} is not finite after step {after}"] = file
    for n in guilty[:3]:
        if n in losses:
            claim = f"the loss of rank {n} was not finite when its backward of step {losses[n][0]} began"
            evidence[claim] = recorder_of(case.cell, n)
    spread = "and the optimizer carried it into the parameters" if broken else "and so is every loss after it"
    summary = f"Parameters are not finite after step {after}: everything trained since is NaN."
    if by_loss:
        summary = f"The loss of {whose(case, guilty)} is NaN or infinite at step {first}, {spread}."
    yield silent_error(
        case,
        summary,
        evidence,
        losses[guilty[0]][1] if by_loss else None,
        Where(
            parameter=parameter, step=int(first) if by_loss else after, phase="forward" if by_loss else None
        ),
        strength=Strength.CONCLUSIVE if broken else Strength.STRONG,
        ranks=guilty,
    )


def _first_loss(case: Case, rank: int) -> tuple[int, str, int] | None:
    """The step and line of the first non-finite loss, and the length of the unbroken series of them up to the end."""
    mine = case.events_of(rank, Kind.BACKWARD)
    found, last = None, 0
    for phase, number, site, step in mine[["phase", "a", "site", "step"]].itertuples():
        if phase == Phase.BEGIN and number == 1:
            found = found or (int(step), str(site))
            last += 1
        elif phase == Phase.BEGIN:
            last = 0
    return (*found, last) if found else None


RULE = Rule(
    family="correctness",
    detected="A parameter that was finite is NaN or infinite; or every loss is, from one step to the end (recorded for losses on the CPU)",
    fix="Run with torch.autograd.set_detect_anomaly(True) to find the operation, check that rank's batch of that step, and let all ranks skip a step together if its loss is not finite.",
    check=nonfinite,
    needs=("black_boxes",),
    explained_by=("replica_drift", "async_work_not_waited"),
)
