"""What makes steps longer: something that piles up, or inputs that grow by a schedule."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.findings import findings
from support.processes.looks import thread
from support.recordings.golden import archive_of, unpack
from support.tables import table

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.relations.trend import Slowing, _given_more, grows, grows_at_best, slowing
from nsadiag.analysis.rules.performance.slow_compute import slow_compute
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.evidence.table import Column, Table


def steps(elements: list[int], step_s: list[float]) -> Table:
    return Table({"step": range(len(step_s)), "elements": elements, "step_s": step_s, "cpu_s": step_s})


def test_inputs_that_double_by_a_schedule_are_no_pile_and_hooks_that_pile_up_meanwhile_are() -> None:
    lengths = [64 * 2 ** (n // 20) for n in range(80)]
    doubled = steps(lengths, [length * 1e-3 for length in lengths])
    assert grows(doubled, "step_s") and _given_more(doubled, "step_s")
    piled = steps(lengths, [length * 1e-3 * (1 + n % 20 / 10) for n, length in enumerate(lengths)])
    assert grows(piled, "step_s") and not _given_more(piled, "step_s")


def test_inputs_that_stay_as_they_are_or_are_not_known_or_are_all_unlike_explain_nothing() -> None:
    longer = [0.1 + 0.01 * n for n in range(80)]
    for elements in ([64] * 80, [0] * 80, [64 + n % 3 for n in range(80)], [64 + n for n in range(80)]):
        assert not _given_more(steps(elements, longer), "step_s")


def test_what_piles_up_is_told_although_a_neighbour_left_before_the_end() -> None:
    quieter = [0.05 + 0.004 * n if n < 60 else 0.24 for n in range(80)]
    assert not grows(steps([0] * 80, quieter), "step_s")
    assert grows(steps([0] * 80, quieter), "step_s", piled=True)
    assert not grows(steps([0] * 80, [0.1] * 80), "step_s", piled=True)


def test_what_piles_up_is_told_by_the_fastest_steps_where_neighbours_hide_the_rest() -> None:
    """As on a GPU that sixteen jobs share."""
    noise = [0.0 if n % 5 == 0 else 1.5 - 0.005 * n for n in range(160)]
    hidden = [0.02 + 0.0006 * n + noise[n] for n in range(160)]
    assert not grows(steps([0] * 160, hidden), "step_s", piled=True)
    assert grows_at_best(Column(hidden))
    assert not grows_at_best(Column([0.02 + each for each in noise]))
    assert not grows_at_best(Column(hidden[:32]))
    settled = steps([0] * 160, hidden)
    slower = Slowing(before=settled[:32], since=settled[-32:], settled=settled, pile=None, at_best=True)
    assert 0.02 < slower.first_s < 0.04 and 0.09 < slower.last_s < 0.12


def test_one_look_at_what_is_done_before_a_long_loop_does_not_hide_the_loop(tmp_path: Path) -> None:
    """A forward of minutes that was looked at in its silence alone: most looks find it in its loop."""
    cell = load_cell(unpack(archive_of("slow_compute_log_line_first"), tmp_path).path)
    rank = cell.ranks[0]

    def looked_at(*codes: str) -> str | None:
        looks = [replace(rank.captures[-1], stacks=(thread_at(cell.sources, code),)) for code in codes]
        seen = replace(cell, ranks=(replace(rank, captures=tuple(looks), samples=()),))
        found = findings(slow_compute, Case(seen))[0]
        (text,) = cell.sources.values()
        return text.splitlines()[found.where.line - 1].strip() if found.where and found.where.line else None

    before, first, second = (
        "h = self.norm(x)",
        "error = v[:, t] - state * k[:, t]",
        "reads.append(state * q[:, t])",
    )
    assert looked_at(first, second, before) == second
    assert looked_at(first, before, first, second) == first
    assert looked_at(before, second) == second
    assert looked_at(before) == before


def thread_at(sources: dict[str, str], code: str) -> PythonThread:
    """The main thread, at that line of the one script."""
    (file, text), *_ = sources.items()
    line = next(n for n, each in enumerate(text.splitlines(), 1) if code in each)
    return thread([("DeltaRule.forward", file, line)], thread_name="MainThread")


@pytest.mark.parametrize("slowed", [(0, 14), (10, 34), (24, 40)])
def test_what_grows_in_the_cpu_time_of_every_rank_is_told_although_something_else_slowed_one_for_a_while(
    tmp_path: Path, slowed: tuple[int, int]
) -> None:
    """The clock shows noise alone; CPU time was taken threefold, as by who shares a core's caches, on one rank after the other."""
    cell = load_cell(unpack(archive_of("slow_compute_memory_never_cut"), tmp_path).path)

    def of_all(work: list[float]) -> Case:
        clock = [0.3 + 0.25 * math.sin(n) for n in range(60)]
        frames: list[dict[str, Any]] = []
        for rank in (0, 1):
            begin, end = (at + 18 * rank for at in slowed)
            noise = [1.0 + 0.4 * (n * (7 + rank) % 5 == 0) for n in range(60)]
            cpu_s = [w * noise[n] * (3 if begin <= n < end else 1) for n, w in enumerate(work)]
            frames += steps([0] * 60, clock).assign(rank=rank, cpu_s=cpu_s).to_dict()
        case = Case(cell)
        case.__dict__["steps"] = table(frames)
        return case

    found = slowing(cell.ranks[0], of_all([0.004 + 0.0008 * n for n in range(60)]))
    assert found is not None and found.last_s > 4 * found.first_s
    assert slowing(cell.ranks[0], of_all([0.04] * 60)) is None
    for at in (12, 30, 48):
        assert slowing(cell.ranks[0], of_all([0.02 if n < at else 0.06 for n in range(60)])) is None


@pytest.mark.parametrize(("power", "confidence"), [(1, 0.5), (1.8, 0.5), (3, 0.85)])
def test_steps_that_cost_what_their_inputs_do_may_be_meant_so(
    tmp_path: Path, power: float, confidence: float
) -> None:
    """Of inputs that grow at every step nobody can see whether that is a schedule, or a memory that is never cut."""
    cell = load_cell(unpack(archive_of("slow_compute_memory_never_cut"), tmp_path).path)
    case = Case(cell)
    lengths = [64 + 8 * n for n in range(80)]
    given = steps(lengths, [0.05 * (length / 64) ** power for length in lengths])
    case.__dict__["steps"] = given.assign(
        rank=0, input_s=0.0, forward_s=0.0, backward_s=given.step_s, loader_s=0.0, saving_s=0.0
    )
    found = findings(slow_compute, case)[0]
    assert found.confidence == confidence
    assert ("their inputs grow" in found.summary) == (confidence == 0.5)


def test_a_step_was_given_what_all_its_forwards_were_given(tmp_path: Path) -> None:
    rank = RunDir(path=tmp_path).rank(0)
    make_private_dir(rank.path)
    write_json(rank.meta, {"rank": 0, "world_size": 1, "pid": 100})
    box = BlackBox(rank.blackbox, rank=0, world_size=1)
    for number in (1, 2):
        for given in (10, 5):
            box.emit(Kind.FORWARD, Phase.BEGIN)
            box.emit(Kind.FORWARD, Phase.END, 0, given)
        box.emit(Kind.STEP, Phase.POINT, 0, number)
    assert Case(load_cell(tmp_path)).steps.elements.tolist() == [15]


SCAN = """
class Scan(Function):
    @staticmethod
    def backward(ctx, grad):
        carry = grad[:, -1]
        for c in range(channels):
            for t in range(steps):
                carry = carry + grad[:, t, c]
                out[:, t, c] = carry
        return whole(out)
"""
ADD, STORE, AFTER = 8, 9, 10
TORCH = "/venv/lib/site-packages/torch/"


def scanning(
    path: Path, lines: list[int], *, backward_s: float, within: str | None = None, loss_s: float = 0.0
) -> list[str]:
    """Classes that are found for a rank that was seen at those lines of its own backward."""
    script = path / "train.py"
    script.write_text(SCAN)
    rank = RunDir(path=path).rank(0)
    make_private_dir(rank.path)
    write_json(rank.meta, {"rank": 0, "world_size": 1, "pid": 100})
    BlackBox(rank.blackbox, rank=0, world_size=1)
    inner = [[TORCH + "nn/modules/module.py", 1, within]] if within else []
    called = [[TORCH + "autograd/function.py", 325, "BackwardCFunction.apply"]]
    rows = [{"t_mono_ns": 1, "frames": [*inner, [str(script), n, "Scan.backward"], *called]} for n in lines]
    rank.samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(RunDir(path=path).watch, {"ended_s": 60.0, "looks": []})
    cell = load_cell(path)
    case = Case(cell)
    given = steps([64] * 40, [backward_s + 0.02 + loss_s] * 40)
    case.__dict__["steps"] = given.assign(
        rank=0, input_s=0.0, forward_s=0.02, backward_s=backward_s, loader_s=0.0, saving_s=0.0
    )
    return [found.cls for found in findings(slow_compute, case)]


def test_a_backward_of_ones_own_that_goes_round_in_python_is_slow_from_the_first_step(tmp_path: Path) -> None:
    assert scanning(tmp_path, [ADD, STORE] * 5, backward_s=1.0) == ["slow_compute"]


def test_a_loss_of_ones_own_may_go_round_in_chunks_both_ways(tmp_path: Path) -> None:
    assert scanning(tmp_path, [ADD, STORE] * 5, backward_s=1.0, loss_s=0.4) == []


@pytest.mark.parametrize(
    ("lines", "backward_s", "within"),
    [
        ([ADD, STORE] * 5, 0.08, None),  # in proportion to its forward
        ([ADD] * 10, 1.0, None),  # one operation that takes all the time
        ([AFTER] * 5 + [ADD, STORE] * 2, 1.0, None),  # mostly behind the loop
        ([ADD, STORE], 1.0, None),  # hardly looked at
        ([ADD, STORE] * 5, 1.0, "_call_impl"),  # runs whole modules again
    ],
)
def test_a_backward_of_ones_own_is_called_slow_by_its_loop_and_its_proportion_together(
    tmp_path: Path, lines: list[int], backward_s: float, within: str | None
) -> None:
    assert scanning(tmp_path, lines, backward_s=backward_s, within=within) == []
