"""What makes steps longer: something that piles up, or inputs that grow by a schedule."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.golden import archive_of, unpack

from nsadiag.analysis.detectors.slow_compute import _given_more, _grows, slow_compute
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.blackbox import BlackBox, Kind, Phase
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json


def steps(elements: list[int], step_s: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(step_s)), "elements": elements, "step_s": step_s, "cpu_s": step_s})


def test_inputs_that_double_by_a_schedule_are_no_pile_and_hooks_that_pile_up_meanwhile_are() -> None:
    lengths = [64 * 2 ** (n // 20) for n in range(80)]
    doubled = steps(lengths, [length * 1e-3 for length in lengths])
    assert _grows(doubled, "step_s") and _given_more(doubled, "step_s")
    piled = steps(lengths, [length * 1e-3 * (1 + n % 20 / 10) for n, length in enumerate(lengths)])
    assert _grows(piled, "step_s") and not _given_more(piled, "step_s")


def test_inputs_that_stay_as_they_are_or_are_not_known_or_are_all_unlike_explain_nothing() -> None:
    longer = [0.1 + 0.01 * n for n in range(80)]
    for elements in ([64] * 80, [0] * 80, [64 + n % 3 for n in range(80)], [64 + n for n in range(80)]):
        assert not _given_more(steps(elements, longer), "step_s")


@pytest.mark.parametrize(("power", "confidence"), [(1, 0.5), (1.8, 0.5), (3, 0.85)])
def test_steps_that_cost_what_their_inputs_do_may_be_meant_so(
    tmp_path: Path, power: float, confidence: float
) -> None:
    """Of inputs that grow at every step nobody can see whether that is a schedule, or a memory that is never cut."""
    cell = load_cell(unpack(archive_of("slow_compute_memory_never_cut"), tmp_path).path)
    tables = Tables(cell)
    lengths = [64 + 8 * n for n in range(80)]
    given = steps(lengths, [0.05 * (length / 64) ** power for length in lengths])
    tables.__dict__["steps"] = given.assign(
        rank=0, input_s=0.0, forward_s=0.0, backward_s=given.step_s, loader_s=0.0, saving_s=0.0
    )
    found = next(slow_compute(cell, tables))
    assert found.confidence == confidence
    assert ("their inputs grow" in found.summary) == (confidence == 0.5)


def test_a_step_was_given_what_all_its_forwards_were_given(tmp_path: Path) -> None:
    rank = RunDir(path=tmp_path).rank(0)
    make_private_dir(rank.path)
    write_json(rank.meta, {"rank": 0, "world_size": 1, "pid": 100})
    box = BlackBox(rank.blackbox, rank.names, rank=0, world_size=1)
    for number in (1, 2):
        for given in (10, 5):
            box.emit(Kind.FORWARD, Phase.BEGIN)
            box.emit(Kind.FORWARD, Phase.END, 0, given)
        box.emit(Kind.STEP, Phase.POINT, 0, number)
    assert Tables(load_cell(tmp_path)).steps.elements.tolist() == [15]
