"""All ranks progress, and one of them keeps the others waiting in every step."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.peer_waits import completed_waits, peer_waits
from nsadiag.analysis.relations.replication import wrapped_at_other_steps
from nsadiag.analysis.relations.trend import slowing
from nsadiag.analysis.rules.drafts import all_but, at_line
from nsadiag.analysis.rules.performance.lags import (
    ALWAYS,
    MEETINGS,
    MIN_LAG_S,
    MIN_LOST_S,
    MIN_STEPS,
    PARTS,
    SHARE_OF_STEP,
    Late,
    alike,
    doing_in,
    first_collectives,
    is_held_up,
    lags_of,
    last_of,
    latest,
    meet,
    peers_slow_down,
    peers_waited,
    typical,
)
from nsadiag.analysis.rules.performance.onset import onset_of
from nsadiag.analysis.rules.performance.same_part import same_parts
from nsadiag.analysis.rules.reasons import everyone, hung
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.phrases import count, seconds
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.table import Table

MIN_OBSERVED_S = 3.0  # a neighbour on the machine may starve one rank for a second or two
MANY_TIMES = 5.0  # times the median wait: longer ones have another cause
OFF_CPU = 0.5  # of its own time: with less time on a CPU it waited for something


def straggler_rank(case: Case) -> Iterator[Draft | Declined]:
    cell, steps = case.cell, alike(case.steps)
    if cell.stopped == "hang":
        yield hung(cell)
        return
    if cell.world_size < 2:
        yield Declined(f"{everyone(cell)} is alone and has no peer to keep waiting")
        return
    if case.steps.empty:
        yield from _by_waits(case)
    if steps["rank"].nunique() < len(cell.met):
        yield Declined(f"{count(steps['rank'].nunique(), 'rank')} completed steps that can be compared")
        return
    if wrapped_at_other_steps(case):
        # Step numbers do not match: a rank may only seem late.
        yield Declined(f"{everyone(cell)} wrapped their models after different numbers of steps")
        return
    observed_s = float(steps.groupby("rank").step_s.sum().max())
    if not observed_s >= MIN_OBSERVED_S:
        yield Declined(f"the steps of the ranks took {observed_s:.1f} s in all: too little to compare")
        return
    parts = [part for part in case.once(same_parts) if len(part) > 1]
    if not parts:
        yield Declined(
            f"each of {everyone(cell)} does a part of its own of a step's work, as stages of a pipeline do: one is behind the other by construction",
            f"{cell.ranks[0].source}/blackbox.bin",
        )
        return
    late = _late_among(case, steps, parts)
    if late is None and (onset := onset_of(case.steps[case.steps["rank"] == cell.ranks[0].rank])):
        # A rank that has become slow recently does not show in all steps together.
        steps = steps[steps.step >= onset.step]
        late = _late_among(case, steps, parts)
    if late is None:
        yield _level(steps)
        return
    slower = slowing(cell.ranks[0], case)
    # A lag that grows with everybody's work is a symptom of that growth.
    if slower is None or slower.in_step or not peers_slow_down(steps, late):
        yield _draft(cell, steps, late)


def _late_among(case: Case, steps: Table, parts: list[frozenset[int]]) -> Late | None:
    """The straggler among ranks that do the same part of the work: one that feeds another one is ready at another time."""
    each = (_late_in(case, steps[steps["rank"].isin(part)]) for part in parts)
    return max((late for late in each if late), key=lambda late: late.lag_s, default=None)


def _late_in(case: Case, steps: Table) -> Late | None:
    """The straggler of these steps, by the first synchronization point that shows one."""
    for column in MEETINGS:
        late = latest(steps, column)
        if late and (_on_gpus(case.cell) or meet(steps, column, late.rank)):
            return late
    return _late_to_begin(steps, case)


def _by_waits(case: Case) -> Iterator[Draft]:
    """In a loop without optimizer steps (inference, a custom optimizer): the rank that peers waited for in most collectives."""
    waits = case.once(completed_waits)
    if len(waits) < MIN_STEPS:
        return
    late = max(case.once(peer_waits).by_rank.values(), key=lambda wait: wait.total_s).rank
    own_s = [wait.for_s for wait in waits if wait.rank == late]
    typical_s, lost_s, all_s = median(own_s), sum(own_s), sum(wait.for_s for wait in waits)
    observed_s = waits[-1].at_s - waits[0].at_s
    # A single long wait (an evaluation, a request) does not make a straggler.
    again_s = sum(each for each in own_s if each < MANY_TIMES * typical_s)
    is_usual = len(own_s) >= max(MIN_STEPS, ALWAYS * len(waits)) and lost_s >= ALWAYS * all_s
    is_long = typical_s >= MIN_LAG_S and again_s >= max(MIN_LOST_S, SHARE_OF_STEP * observed_s)
    if not is_usual or not is_long or observed_s < MIN_OBSERVED_S:
        return
    rank = case.cell.rank(late)
    claim = f"rank {late} kept its peers waiting {len(own_s)} times, for {lost_s:.1f} s in total; all other ranks together for {all_s - lost_s:.1f} s"
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Rank {late} is the last to enter {_many(len(own_s), len(waits))} collectives that had to wait for a rank, typically {seconds(typical_s)} after the first: its peers have waited for it for {lost_s:.1f} of {observed_s:.0f} s.",
        guilty_ranks=(late,),
        blocked_ranks=all_but(case.cell, (late,)),
        at=locations.most_seen(s for s in rank.samples if not locations.waits_for_peers(s)),
        evidence={claim: f"{rank.source}/blackbox.bin", **_sampled(rank)},
        fix=f"Give rank {late} the same amount of work between two collectives as its peers, or a machine as fast as theirs.",
    )


def _level(steps: Table) -> Declined:
    """The lag between the ranks of a job without a straggler."""
    lags = typical(lags_of(steps, "ready_s"))
    if not lags:
        return Declined(f"{count(steps.step.nunique(), 'step')} on all ranks: too few to compare")
    last, step_s = last_of(lags), steps.step_s.median()
    return Declined(
        f"rank {last}, the last to be ready, is {seconds(lags[last])} behind the first in a step of {seconds(step_s)}",
        f"ranks/{last:05d}/blackbox.bin",
    )


def _late_to_begin(steps: Table, case: Case) -> Late | None:
    """A rank that is late where ranks synchronize before forward: with its batch, or with most of its step."""
    met = first_collectives(case, steps)
    entered = {(rank, step): t_s for rank, step, t_s in met[["rank", "step", "met_at"]].itertuples()}
    met_at = [entered.get(key) for key in zip(steps["rank"], steps.step, strict=True)]
    known = steps.assign(met_at=met_at)[[each is not None for each in met_at]]
    late = latest(known, "met_at") if len(known) else None
    if late is None or not peers_waited(met, late.rank):
        return None
    return late if is_held_up(case, known, late.rank, late.lag_s) else None


def _on_gpus(cell: CellEvidence) -> bool:
    """Whether hosts may run ahead of their GPU queues (or it is unknown): they then synchronize later than events show."""
    peaks = [rank.meta.memory.get("device_peak_kib") for rank in cell.ranks]
    return any(peak is None or peak > 0 for peak in peaks)


def _draft(cell: CellEvidence, steps: Table, late: Late) -> Draft:
    mine = steps[steps["rank"] == late.rank]
    own = {name: mine[name].median() for name in mine.columns if name not in ("rank", "step")}
    column = late.part or max(PARTS, key=lambda name: own[name])
    doing = doing_in(column, lambda name: own[name])
    rank = cell.rank(late.rank)
    source = f"{rank.source}/blackbox.bin"
    evidence = {
        f"rank {late.rank} is the last to {late.last_to} in {late.share:.0%} of {len(late.lags)} steps, typically {seconds(late.lag_s)} after the first": source,
        f"of a step of {seconds(own['step_s'])} it spends {seconds(own[column])} in {doing}": source,
    }
    # A straggler that is not on a CPU waits.
    if 0 <= own["cpu_s"] < OFF_CPU * own[column]:
        claim = f"it is on a CPU for only {seconds(own['cpu_s'])} of the step: it waits for a device, a disk or a network, is throttled, or shares its CPUs"
        evidence[claim] = source
    return Draft(
        strength=Strength.STRONG,
        summary=f"Rank {late.rank} is ready {seconds(late.lag_s)} later than its peers in a step of {seconds(own['step_s'])}, most of it in {doing}; they wait for it.",
        guilty_ranks=(late.rank,),
        blocked_ranks=all_but(cell, (late.rank,)),
        at=_place(rank, column),
        where=Where(phase=doing),
        evidence={**evidence, **_sampled(rank, column)},
        fix=f"Give rank {late.rank} no more {doing} than its peers have, or a machine as fast as theirs.",
    )


def _many(number: int, everything: int) -> str:
    return f"all {everything}" if number == everything else f"{number} of the {everything}"


def _beside(rank: RankEvidence) -> Place | None:
    """The line of another user thread that holds the interpreter in at least half of the samples."""
    seen = sum(bool(sample.beside) for sample in rank.samples)
    return locations.most_seen(rank.samples, beside=True) if seen and 2 * seen >= len(rank.samples) else None


def _place(rank: RankEvidence, column: str) -> Place | None:
    """The line of its own work."""
    at = _beside(rank) or locations.most_seen(_at_work(rank, column))
    # A busy machine leaves few samples. The last event's line is no work between steps.
    return at or (locations.of_black_box(rank) if column != "input_s" else None)


def _at_work(rank: RankEvidence, column: str) -> list[Sample]:
    """Samples of the part in which it is late: work between steps is outside the model and collectives."""
    return [s for s in rank.samples if column != "input_s" or not locations.in_a_step(s)]


def _sampled(rank: RankEvidence, column: str = "") -> Claims:
    thread, seen = _beside(rank), _at_work(rank, column)
    if not thread and not seen:
        return {}
    claim = f"the line is the one seen most often in {count(len(seen), 'sample')} of its stack"
    if thread:
        claim = (
            f"in most of {len(rank.samples)} samples another thread holds the interpreter,{at_line(thread)}"
        )
    return {claim: f"{rank.source}/samples.jsonl"}


RULE = Rule(
    means={"straggler_rank": "All ranks progress; one takes much longer than its peers, which wait for it."},
    family="performance",
    outcome="slow",
    detected="All ranks progress, and in at least 80 % of the steps the same rank is the last to have its gradients. Its median lag behind the first is at least 30 % of a step and 20 ms, and its lags add up to half a second. Where a step opens with a collective, the last rank to enter it counts, if its loader takes the longer, or it is half a step behind. In a loop without a torch optimizer, it is the rank for which the peers waited in 80 % of their collectives and 30 % of the time (at 75 %). Ranks that send each other activations, as stages of a pipeline do, are compared with those alone that do the same part of the work. Steps in which only some ranks run a forward do not count, nor, on CPUs, steps that peers finish before the last rank is ready. After a lasting jump in step time, only the steps since then count. If the peers' own work grows step by step as well, that is the cause instead.",
    fix="Look at what this rank does that its peers do not: its data, its host, work that only it does.",
    actions=("exclude host", "fix code"),
    check=straggler_rank,
    needs=("black_boxes",),
    confused_with=("slow_compute",),
)
