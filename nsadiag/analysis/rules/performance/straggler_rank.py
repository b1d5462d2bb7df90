"""All ranks progress, and one of them keeps the others waiting in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import pandas as pd

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.peer_waits import completed_waits, peer_waits
from nsadiag.analysis.relations.trend import MIN_STEPS as MIN_GROWING
from nsadiag.analysis.relations.trend import grows, slowing
from nsadiag.analysis.rules.correctness.replicas.replica_drift import wrapped_at_other_steps
from nsadiag.analysis.rules.drafts import all_but
from nsadiag.analysis.rules.performance.first_collective import (
    ALWAYS,
    first_collectives,
    is_due_to_loading,
    peers_waited,
)
from nsadiag.analysis.rules.performance.onset import onset_of
from nsadiag.analysis.rules.reasons import hung
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.records import Place, Strength, Where

MIN_STEPS = 5
SHARE_OF_STEP = 0.3  # of the step, lost by the waiting peers
MIN_LAG_S = 0.02  # below this, scheduling noise on a shared machine looks the same
MIN_OBSERVED_S = 3.0  # a neighbour on the machine may starve one rank for a second or two
MIN_LOST_S = 0.5  # total wait of the peers: a few uneven steps make no straggler
MANY_TIMES = 5.0  # times the median wait: longer ones have another cause
SLACK = 0.1  # of a step: tolerance for clocks and threads
PARTS = {"input_s": "input", "forward_s": "forward", "backward_s": "backward"}
# The point at which ranks first synchronize: FSDP in forward, DDP when the last gradient has arrived.
MEETINGS = {"ready_s": "have its gradients", "forward_at": "begin its forward"}
FIRST_MET = "enter the collective that opens the step"
OFF_CPU = 0.5  # of its own time: with less time on a CPU it waited for something
WORKS, IDLES = 0.6, 0.45  # shares of a step on a CPU: of the straggler, and of the ranks that wait for it
FIX = "Give rank {rank} the same amount of {part} work as its peers, or a machine as fast as theirs."


@dataclass(frozen=True, kw_only=True)
class Late:
    """The straggler, and its lag."""

    rank: int
    lag_s: float
    share: float  # of the steps
    steps: int
    last_to: str
    part: str | None = None  # of the step, where the lag alone determines it
    lags: pd.DataFrame = field(compare=False, repr=False)  # as `_lags` gives them


def straggler_rank(case: Case) -> Iterator[Draft | Declined]:
    steps = alike(case.steps)
    if case.steps.empty and case.cell.world_size > 1 and case.cell.stopped != "hang":
        yield from _by_waits(case)
    if (
        case.cell.world_size < 2
        or steps["rank"].nunique() < len(case.cell.met)
        or case.cell.stopped == "hang"
    ):
        stepped = (
            f"{steps['rank'].nunique()} of {case.cell.world_size} ranks completed steps that can be compared"
        )
        if case.cell.world_size < 2:
            stepped = "the one rank has no peer to keep waiting"
        yield hung(case.cell) if case.cell.stopped == "hang" else Declined(stepped)
        return
    if wrapped_at_other_steps(case):
        yield Declined("the ranks wrapped their models after different numbers of steps")
        return  # step numbers do not match: a rank may only seem late
    observed_s = float(steps.groupby("rank").step_s.sum().max())
    if not observed_s >= MIN_OBSERVED_S:
        yield Declined(f"the steps of the ranks took {observed_s:.1f} s in all: too little to compare")
        return
    late = _late_in(case, steps)
    onset = onset_of(case.steps[case.steps["rank"] == case.cell.ranks[0].rank]) if late is None else None
    if onset is not None:
        # A rank that has become slow recently does not show in all steps together.
        steps = steps[steps.step >= onset.step]
        late = _late_in(case, steps)
    if late is None:
        yield from _by_cpu(case.cell, steps)
        yield _level(steps)
        return
    slower = slowing(case.cell.ranks[0], case)
    # A lag that grows with everybody's work is a symptom of that growth.
    if slower is None or slower.in_step or not peers_slow_down(steps, late):
        yield _finding(case.cell, steps, late)


def _late_in(case: Case, steps: pd.DataFrame) -> Late | None:
    """The straggler of these steps, by the first synchronization point that shows one."""
    found = ((column, late) for column in MEETINGS if (late := _late(steps, column)))
    late = next(
        (late for column, late in found if _on_gpus(case.cell) or meet(steps, column, late.rank)), None
    )
    return late or _late_with_its_batch(steps, case)


def _by_waits(case: Case) -> Iterator[Draft]:
    """In a loop without optimizer steps (inference, a custom optimizer): the rank that peers waited for in most collectives."""
    waits = case.once(completed_waits)
    if len(waits) < MIN_STEPS:
        return
    late = max(case.once(peer_waits).by_rank.values(), key=lambda wait: wait.total_s)
    own = [wait for wait in waits if wait.rank == late.rank]
    typical_s, lost_s = median(w.for_s for w in own), sum(w.for_s for w in own)
    observed_s = waits[-1].at_s - waits[0].at_s
    of_all = lost_s / sum(wait.for_s for wait in waits)
    # A single long wait (an evaluation, a request) does not make a straggler.
    again = sum(w.for_s for w in own if w.for_s < MANY_TIMES * typical_s)
    enough = typical_s >= MIN_LAG_S and again >= max(MIN_LOST_S, SHARE_OF_STEP * observed_s)
    if len(own) < max(MIN_STEPS, ALWAYS * len(waits)) or of_all < ALWAYS or not enough:
        return
    if observed_s < MIN_OBSERVED_S:
        return
    rank = case.cell.rank(late.rank)
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Rank {late.rank} is the last to enter {len(own)} of the {len(waits)} collectives that had to wait for a rank, typically {typical_s * 1e3:.0f} ms after the first: its peers have waited for it for {lost_s:.1f} of {observed_s:.0f} s.",
        guilty_ranks=(late.rank,),
        blocked_ranks=all_but(case.cell, (late.rank,)),
        where=Where().at(locations.most_seen(s for s in rank.samples if not locations.waits_for_peers(s))),
        evidence={
            f"rank {late.rank} kept its peers waiting {len(own)} times, for {lost_s:.1f} s in total; all other ranks together for {sum(w.for_s for w in waits) - lost_s:.1f} s": f"{rank.source}/blackbox.bin",
            **dict(_sampled(rank)),
        },
        fix=f"Give rank {late.rank} the same amount of work between two collectives as its peers, or a machine as fast as theirs.",
    )


def _level(steps: pd.DataFrame) -> Declined:
    """The lag between the ranks of a job without a straggler."""
    lags = _lags(steps, "ready_s").median()
    if lags.empty:
        return Declined(f"{steps.step.nunique()} steps are too few to compare")
    last, step_s = lags.idxmax(), float(steps.step_s.median())
    return Declined(
        f"rank {last}, the last to be ready, is {float(lags.max()) * 1e3:.0f} ms behind the first in a step of {step_s * 1e3:.0f} ms",
        f"ranks/{int(str(last)):05d}/blackbox.bin",
    )


def alike(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps in which either all ranks or none ran their model.

    Under Join, a rank without data joins the collectives of the others: it waits, and no rank is late.
    """
    kinds = steps.groupby("step").computed.transform("nunique")
    same: pd.DataFrame = steps[kinds == 1]
    return same


def _settled(table: pd.DataFrame) -> pd.DataFrame:
    """The steps after the warm-up."""
    settled: pd.DataFrame = table[table.index > min(3, table.index.max() // 3)]
    return settled


def _late_with_its_batch(steps: pd.DataFrame, case: Case) -> Late | None:
    """A rank whose batch is late, where ranks synchronize before forward. Other work on one rank may be intended."""
    met = first_collectives(case, steps)
    known = steps.merge(met, on=["rank", "step"])
    late = _late(known, "met_at") if len(known) else None
    if (
        late is None
        or not peers_waited(met, late.rank)
        or not is_due_to_loading(case, known, late.rank, late.lag_s)
    ):
        return None
    return late


def _lags(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """For each step (row) and rank (column), the seconds after the first rank.

    Durations on one rank mislead: where ranks wait for the slow one (in backward, in `.item()`) differs by backend.
    The order in which they become ready does not.
    """
    ready = _settled(steps.pivot_table(index="step", columns="rank", values=column).dropna())
    lags: pd.DataFrame = ready.sub(ready.min(axis=1), axis=0)
    return lags


def _late(steps: pd.DataFrame, column: str) -> Late | None:
    lags = _lags(steps, column)
    if len(lags) < MIN_STEPS:
        return None
    medians = lags.median()
    slowest = int(str(medians.idxmax()))
    lag, share = float(medians[slowest]), float((lags.idxmax(axis=1) == slowest).mean())
    step_s = float(steps[steps["rank"] == slowest].step_s.median())
    if lag < max(MIN_LAG_S, SHARE_OF_STEP * step_s) or share < ALWAYS or lag * len(lags) < MIN_LOST_S:
        return None
    part = "input" if column in ("forward_at", "met_at") else None
    last_to = MEETINGS.get(column, FIRST_MET)
    return Late(rank=slowest, lag_s=lag, share=share, steps=len(lags), last_to=last_to, part=part, lags=lags)


def _on_gpus(cell: CellEvidence) -> bool:
    """Whether hosts may run ahead of their GPU queues (or it is unknown): they then synchronize later than events show."""
    peaks = [rank.meta.memory.get("device_peak_kib") for rank in cell.ranks]
    return any(peak is None or peak > 0 for peak in peaks)


def meet(steps: pd.DataFrame, column: str, slowest: int) -> bool:
    """Whether the early ranks wait for that rank: none of them ends a step before it is ready for the step.

    In most steps, or repeatedly, if they synchronize every few steps. Ranks that train independently, or have made
    other numbers of steps (under Join), are not waiting for it.
    """
    ready = _settled(steps.pivot_table(index="step", columns="rank", values=column).dropna())
    ends = steps.pivot_table(index="step", columns="rank", values="end_s").reindex(ready.index)
    own, first = ready[slowest], ends.drop(columns=slowest).min(axis=1)
    together = first >= own - SLACK * own.diff().median()
    again = int((together & ~together.shift(1, fill_value=True)).sum())
    return bool(together.mean() >= ALWAYS or again >= MIN_STEPS)


def peers_slow_down(steps: pd.DataFrame, late: Late) -> bool:
    """Whether the peers' own work grows step by step too: the straggler then only has more of what slows all ranks."""
    length = steps.pivot_table(index="step", columns="rank", values="step_s").reindex(late.lags.index)
    waited = late.lags.rsub(late.lags[late.rank], axis=0).clip(lower=0.0)
    own = (length - waited).drop(columns=late.rank).median(axis=1).rename("step_s")
    return len(own) >= MIN_GROWING and grows(own.reset_index(), "step_s")


def _part(own: pd.Series[float], late: Late) -> tuple[str, str]:
    """The part of the step in which the rank spends most time (as a column), and its activity there."""
    column = next((c for c, part in PARTS.items() if part == late.part), None)
    column = column or max(PARTS, key=lambda name: float(own[name]))
    if column != "input_s":
        return column, PARTS[column]
    between = float(own.input_s)
    if own.saving_s > between / 2:
        return column, "saving"
    return column, "input" if own.loader_s > between / 2 else "input and other work between steps"


def _finding(cell: CellEvidence, steps: pd.DataFrame, late: Late) -> Draft:
    own = steps[steps["rank"] == late.rank].drop(columns=["rank", "step"]).median()
    column, doing = _part(own, late)
    rank = cell.rank(late.rank)
    source = f"{rank.source}/blackbox.bin"
    evidence = {
        f"rank {late.rank} is the last to {late.last_to} in {late.share:.0%} of {late.steps} steps, typically {late.lag_s * 1e3:.0f} ms after the first": source,
        f"of a step of {own.step_s * 1e3:.0f} ms it spends {own[column] * 1e3:.0f} ms in {doing}": source,
        **dict(_on_cpu(own, column, source)),
        **dict(_sampled(rank, column)),
    }
    return Draft(
        strength=Strength.STRONG,
        summary=f"Rank {late.rank} is ready {late.lag_s * 1e3:.0f} ms later than its peers in a step of {own.step_s * 1e3:.0f} ms, most of it in {doing}; they wait for it.",
        guilty_ranks=(late.rank,),
        blocked_ranks=all_but(cell, (late.rank,)),
        where=Where(phase=PARTS[column]).at(_place(rank, column)),
        evidence=evidence,
        fix=FIX.format(rank=late.rank, part=doing),
    )


def _on_cpu(own: pd.Series[float], column: str, source: str) -> Iterator[tuple[str, str]]:
    """A straggler that is not on a CPU waits: it is throttled, or reads from something slow."""
    if 0 <= own.cpu_s < OFF_CPU * own[column]:
        claim = f"it is on a CPU for only {own.cpu_s * 1e3:.0f} ms of the step: it waits for a device, a disk or a network, or is throttled"
        yield claim, source


def _beside(rank: RankEvidence) -> Place | None:
    """The line of another user thread that holds the interpreter in at least half of the samples."""
    seen = sum(bool(sample.beside) for sample in rank.samples)
    return locations.most_seen(rank.samples, beside=True) if seen and 2 * seen >= len(rank.samples) else None


def _place(rank: RankEvidence, column: str = "") -> Place | None:
    """The line of its own work."""
    at = _beside(rank) or locations.most_seen(_at_work(rank, column))
    # A busy machine leaves few samples. The last event's line is no work between steps.
    return at or (locations.of_black_box(rank) if column != "input_s" else None)


def _at_work(rank: RankEvidence, column: str) -> list[Sample]:
    """Samples of the part in which it is late: work between steps is outside the model and collectives."""
    return [s for s in rank.samples if column != "input_s" or not locations.in_a_step(s)]


def _sampled(rank: RankEvidence, column: str = "") -> Iterator[tuple[str, str]]:
    thread, seen = _beside(rank), _at_work(rank, column)
    if thread:
        yield (
            f"in most of {len(rank.samples)} samples another thread holds the interpreter, at {locations.short(thread)}",
            f"{rank.source}/samples.jsonl",
        )
    elif seen:
        yield (
            f"the line is the one seen most often in {len(seen)} samples of its stack",
            f"{rank.source}/samples.jsonl",
        )


def _by_cpu(cell: CellEvidence, steps: pd.DataFrame) -> Iterator[Draft]:
    """The rank that works while the others idle: where ranks synchronize layer by layer (FSDP), lags show nothing."""
    table = _settled(
        steps.assign(busy=steps.cpu_s / steps.step_s).pivot_table(index="step", columns="rank", values="busy")
    )
    if len(table) < MIN_STEPS:
        return
    busy = table.median()
    slowest = int(str(busy.idxmax()))
    others = busy.drop(slowest)
    share = float((table.idxmax(axis=1) == slowest).mean())
    step_s = float(steps[steps["rank"] == slowest].step_s.median())
    idle_s = step_s * (1.0 - float(others.max()))
    if busy[slowest] < WORKS or others.max() > IDLES or share < ALWAYS or idle_s < MIN_LAG_S:
        return
    if not (_on_gpus(cell) or meet(steps, "ready_s", slowest)):
        return
    rank = cell.rank(slowest)
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Rank {slowest} is on a CPU for {busy[slowest]:.0%} of each step of {step_s * 1e3:.0f} ms, its peers for at most {others.max():.0%}: they wait for it.",
        guilty_ranks=(slowest,),
        blocked_ranks=all_but(cell, (slowest,)),
        where=Where().at(_place(rank)),
        evidence={
            f"share of a step spent on a CPU: rank {slowest} {busy[slowest]:.0%}, the others at most {others.max():.0%}, over {len(table)} steps": f"{rank.source}/blackbox.bin",
            **dict(_sampled(rank)),
        },
        fix=FIX.format(rank=slowest, part="compute"),
    )


RULE = Rule(
    name="straggler_rank",
    means={"straggler_rank": "All ranks progress; one takes much longer than its peers, which wait for it."},
    family="performance",
    outcome="slow",
    detected="All ranks progress. In at least 80 % of the steps the same rank is the last to have its gradients, its median lag behind the first is at least 30 % of a step and 20 ms, and the lags add up to half a second. Lags are compared rather than durations, because where a rank waits for the slow one differs by backend. Where a step opens with a collective, the last rank to enter it counts, if its loader takes the longer. In a loop without a torch optimizer, the rank for which the peers waited in 80 % of their collectives and 30 % of the time (at 75 %). Not counted: steps in which some ranks run no forward (under Join, when their data is used up), and, on CPUs, steps that peers finish before the last rank is ready, since they did not wait for it. After a lasting jump in step time only the steps since then count. If the peers' own work grows step by step as well, that is the cause instead",
    fix="Look at what this rank does that its peers do not: its data, its host, work that only it does.",
    actions=("exclude host", "fix code"),
    check=straggler_rank,
    needs=("black_boxes",),
    confused_with=("slow_compute",),
)
