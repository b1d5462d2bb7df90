"""Who is late, by evidence of jobs that really ran: and for how long it has to be so."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from support.findings import findings
from support.recordings.golden import archive_of, unpack
from support.tables import table

from nsadiag.analysis.case import EVENT_COLUMNS, Case
from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.rules.performance.lags import alike, latest, meet, peers_slow_down
from nsadiag.analysis.rules.performance.straggler_rank import straggler_rank
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.evidence.ring.spans import spans_in
from nsadiag.evidence.table import Table


@pytest.mark.parametrize(("seconds", "found"), [(9.0, [1]), (2.0, [])])
def test_a_rank_that_is_late_for_a_second_or_two_may_be_starved_by_a_neighbour(
    tmp_path: Path, seconds: float, found: list[int]
) -> None:
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    steps = Case(cell=cell).steps
    observed = (frame(steps).groupby("rank").step_s.cumsum() <= seconds).tolist()
    case = Case(cell=cell)
    case.__dict__["steps"] = steps[observed]
    guilty = [rank for each in findings(straggler_rank, case) for rank in each.guilty_ranks]
    assert steps[observed]["step"].nunique() > 7 and guilty == found


def test_steps_that_a_rank_makes_for_its_peers_after_its_own_data_say_nothing_of_who_is_late(
    tmp_path: Path,
) -> None:
    """Under Join it goes along in their collectives, and in the optimizer's where that is sharded: without a model."""
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    whole = Case(cell=cell)
    assert whole.steps.computed.all()
    own = whole.steps.step < 5
    events = whole.events
    model = events.kind.isin((Kind.FORWARD, Kind.BACKWARD, Kind.GRADIENT))
    joined = Case(cell=cell)
    joined.__dict__["events"] = events[
        ~(model & (events["rank"] == 0) & (events.t_s > whole.steps[own].end_s.max()))
    ]
    assert not joined.steps.computed.all()
    assert findings(straggler_rank, whole) and not findings(straggler_rank, joined)
    # Where no rank's model is seen at all, as where it is no module, all steps are of one kind.
    unseen = Case(cell=cell)
    unseen.__dict__["events"] = events[~model]
    assert len(alike(unseen.steps)) == len(alike(whole.steps))


def test_a_few_late_steps_that_cost_little_make_nobody_a_straggler(tmp_path: Path) -> None:
    """As where ranks are together for a few steps of an epoch alone."""
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    steps = Case(cell=cell).steps
    late = latest(steps, "forward_at")
    assert late is not None
    nearer = frame(steps)
    # The same at 25 ms behind: 37 steps cost 0.9 s, and ten of them a quarter of that.
    nearer[["ready_s", "forward_at", "end_s", "step_s"]] *= 0.025 / late.lag_s
    steps = changed(nearer)
    assert latest(steps, "forward_at") is not None
    assert latest(steps[steps.step < 12], "forward_at") is None


@pytest.mark.parametrize(("peer_grows", "also"), [(True, True), (False, False)])
def test_a_wait_that_grows_with_the_work_of_all_is_a_part_of_what_that_costs(
    peer_grows: bool, also: bool
) -> None:
    """One core is slower than the other, and what both do gets longer; or what one of them does alone."""
    rows, now = [], 0.0
    for step in range(60):
        own = {0: 0.01 + (0.0015 * step if peer_grows else 0.0), 1: 0.015 + 0.00225 * step}
        end = now + max(own.values())
        rows += [
            {"rank": r, "step": step, "ready_s": now + s, "end_s": end, "step_s": end - now}
            for r, s in own.items()
        ]
        now = end
    steps = table(rows)
    late = latest(steps, "ready_s")
    assert late is not None and late.rank == 1
    assert peers_slow_down(steps, late) == also


def frame(of: Table) -> pd.DataFrame:
    """To change it with pandas' means."""
    return pd.DataFrame(of.to_dict())


def changed(frame: pd.DataFrame) -> Table:
    """And back."""
    return table(frame.to_dict("records"))


def ahead(steps: Table, seconds: Callable[[int], float]) -> Table:
    """The same with all that rank 0 does so much earlier."""
    moved = frame(steps)
    first = moved["rank"] == 0
    for column in ("ready_s", "forward_at", "end_s"):
        moved.loc[first, column] -= moved.step.map(seconds)
    return changed(moved)


def test_who_is_ahead_by_more_than_a_step_does_not_wait_for_the_one_behind(tmp_path: Path) -> None:
    """Ranks that train on their own, or made other numbers of steps under Join: nobody is late for anybody."""
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    steps = Case(cell=cell).steps
    assert meet(steps, "ready_s", 1)
    alone = Case(cell=cell)
    alone.__dict__["steps"] = ahead(steps, lambda _: 1.0)
    assert not meet(alone.steps, "ready_s", 1) and not findings(straggler_rank, alone)
    # Where they meet every fourth step, the one behind holds the others up as before.
    now_and_then = ahead(steps, lambda step: 0.2 * (step % 4))
    assert meet(now_and_then, "ready_s", 1)


def test_one_number_may_be_another_step_after_epochs_of_other_lengths(tmp_path: Path) -> None:
    """Under Join: then who is a step behind seems late by as much as a step takes."""
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    case = Case(cell=cell)
    later = [step + (rank == 0) for step, rank in zip(case.steps.step, case.steps["rank"], strict=True)]
    steps = case.steps.assign(step=later)
    assert latest(steps, "ready_s") and not meet(steps, "ready_s", 1)
    case.__dict__["steps"] = steps
    assert not findings(straggler_rank, case)


def test_hosts_of_gpus_may_run_ahead_of_what_they_have_queued(tmp_path: Path) -> None:
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    for rank in cell.ranks:
        rank.meta.memory["device_peak_kib"] = 4096
    case = Case(cell=cell)
    case.__dict__["steps"] = ahead(case.steps, lambda _: 1.0)
    assert [each.guilty_ranks for each in findings(straggler_rank, case)] == [(1,)]


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """A job whose ranks tell each other how many tokens they have, before they compute: 30 steps of 0.2 s and more."""

    reads_s: tuple[float, float] = (0.001, 0.15)
    alone_s: float = 0.0  # what rank 1 does by itself between its batch and the gather
    batches: tuple[int, int] = (1, 1)
    returns_at_once: bool = False

    def events(self) -> Table:
        rows = [row for rank in (0, 1) for step in range(30) for row in self._step(rank, step)]
        return Table.of_rows(rows, EVENT_COLUMNS)

    def _step(self, rank: int, step: int) -> list[tuple[object, ...]]:
        begin = step * (0.05 + max(self._came(r) for r in (0, 1)))
        loaded, came = begin + self.reads_s[rank], begin + self._came(rank)
        met = came + 0.001 if self.returns_at_once else begin + max(self._came(r) for r in (0, 1))
        at = [
            (Kind.STEP, Phase.POINT, begin),
            *[event for _ in range(self.batches[rank]) for event in
              ((Kind.DATA, Phase.BEGIN, begin + 0.0001), (Kind.DATA, Phase.END, loaded))],
            (Kind.COLLECTIVE, Phase.BEGIN, came),
            (Kind.COLLECTIVE, Phase.END, met),
            *((kind, phase, begin + max(self._came(r) for r in (0, 1)) + 0.01 * (n + 1)) for n, (kind, phase) in enumerate(
                ((Kind.FORWARD, Phase.BEGIN), (Kind.FORWARD, Phase.END), (Kind.BACKWARD, Phase.BEGIN), (Kind.BACKWARD, Phase.END)))),
        ]  # fmt: skip
        return [
            (
                rank,
                t_s,
                kind,
                phase,
                "all_gather",
                step,
                step,
                0,
                rank,
                "default_pg",
                "train.py:8:main",
                "int64[1]",
            )
            for kind, phase, t_s in at
        ]

    def _came(self, rank: int) -> float:
        return self.reads_s[rank] + rank * self.alone_s


class Told(Case):
    """A case whose events are written by hand, and its spans with them."""

    def spans(self, rank: RankEvidence, *kinds: int) -> list[Span]:
        events = self.events_of(rank.rank, *kinds)
        rows, ends = [*events], spans_in(events)
        return [
            Span(
                rank=rank.rank, thread=row.thread, kind=row.kind, name=row.name, group=row.group, number=row.a,
                begin_s=row.t_s, end_s=None if end is None else rows[end].t_s, place=row.site, detail=row.detail,
                step=row.step, elements=row.b,
            )
            for row, end in ((rows[place], end) for place, end in ends.items())
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("job", "found"),
    [
        (Gathering(), [1]),
        (Gathering(reads_s=(0.15, 0.15)), []),
        # Plots in every step, which takes most of it; or a little, while the others rightly wait for it.
        (Gathering(reads_s=(0.001, 0.001), alone_s=0.15), [1]),
        (Gathering(reads_s=(0.001, 0.001), alone_s=0.035), []),
        # Evaluates, on batches of its own.
        (Gathering(batches=(1, 5)), []),
        # Reads for all of them.
        (Gathering(batches=(0, 1)), []),
        # Nobody is held up by a call that only tells.
        (Gathering(returns_at_once=True), []),
    ],
)
def test_who_is_late_with_its_batch_holds_up_those_who_meet_before_they_compute(
    tmp_path: Path, job: Gathering, found: list[int]
) -> None:
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    case = Told(cell=cell)
    case.__dict__["events"] = job.events()
    told = findings(straggler_rank, case)
    assert [rank for each in told for rank in each.guilty_ranks] == found
    assert all("collective that opens the step" in each.evidence[0].claim for each in told)


def box(folder: Path, rank: int, slow_s: float) -> None:
    """A rank's black box of a loop that meets in one collective a round, and has no optimizer."""
    directory = RunDir(path=folder).rank(rank)
    make_private_dir(directory.path)
    write_json(directory.meta, {"rank": rank, "world_size": 2, "pid": os.getpid()})
    written = BlackBox(directory.blackbox, rank=rank, world_size=2)
    all_reduce, label = written.names("all_reduce"), written.names("default_pg\t/job/serve.py:9:main")
    for number in range(12):
        written.emit(Kind.FORWARD, Phase.BEGIN)
        time.sleep(slow_s)
        written.emit(Kind.FORWARD, Phase.END)
        written.emit(Kind.COLLECTIVE, Phase.BEGIN, all_reduce, number, 0, label)
        time.sleep(0.4 - slow_s)  # until both have come
        written.emit(Kind.COLLECTIVE, Phase.END, all_reduce, number, 0, label)


@pytest.mark.parametrize(("slow_s", "guilty"), [(0.3, [1]), (0.02, [])])
def test_a_loop_without_an_optimizer_has_its_straggler_by_whom_the_peers_wait_for(
    tmp_path: Path, slow_s: float, guilty: list[int]
) -> None:
    ranks = [threading.Thread(target=box, args=(tmp_path, n, s)) for n, s in ((0, 0.01), (1, slow_s))]
    started_ns = time.monotonic_ns()
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    write_json(RunDir(path=tmp_path).watch, {"started_mono_ns": started_ns, "ended_s": 6.0})
    found = findings(straggler_rank, Case(load_cell(tmp_path)))
    assert [rank for each in found for rank in each.guilty_ranks] == guilty
    assert all("is the last to enter all 12 collectives" in each.summary for each in found)


def test_a_rank_that_has_become_slow_is_the_straggler_since_then(tmp_path: Path) -> None:
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    real = frame(Case(cell).steps)
    late = real.sort_values(["rank", "step"])
    # Before, both ranks were as quick as the quick one: a hundred steps of 4 ms.
    quick = [
        {**late.iloc[0].to_dict(), "rank": r, "step": n, "end_s": 0.004 * n, "step_s": 0.004, "ready_s": 0.004 * n - 0.001,
         "forward_at": 0.004 * n - 0.003, "computed": True}
        for r in (0, 1) for n in range(1, 101)
    ]  # fmt: skip
    slow = late.assign(
        step=late.step + 100, end_s=late.end_s + 1, ready_s=late.ready_s + 1, forward_at=late.forward_at + 1
    )
    case = Case(cell)
    case.__dict__["steps"] = changed(pd.concat([pd.DataFrame(quick), slow], ignore_index=True))
    (found,) = findings(straggler_rank, case)[:1]
    assert found.guilty_ranks == (1,)
