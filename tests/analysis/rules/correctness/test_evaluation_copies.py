"""Copies of a model that ranks evaluate: the same everywhere, or each rank's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.findings import findings

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.correctness.evaluation_copies import evaluation_copies
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json
from nsadiag.evidence.records import Finding


def found_in(cell: CellEvidence) -> list[Finding]:
    return findings(evaluation_copies, Case(cell))


def cell(path: Path, sums: dict[int, dict[str, list[float]]], group: list[int] | None = None) -> CellEvidence:
    """By rank and model: the sum over its one parameter at evaluations 1, 2, 4, ..., after as many steps."""
    run = RunDir(path=path)
    for rank, models in sums.items():
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": len(sums), "pid": 100 + rank})
        write_json(run.rank(rank).ddp, [{"ranks": group or list(sums), "parameters": []}])
        for model, totals in models.items():
            for n, total in enumerate(totals):
                row: dict[str, Any] = {"model": model, "call": 2**n, "step": 2**n}
                row["parameters"] = [["head.weight", [4], total, 8.0]]
                append_json_line(run.rank(rank).evaluated, row)
    return load_cell(path)


def test_an_average_that_one_rank_alone_keeps_up_is_told_by_those_that_never_change(tmp_path: Path) -> None:
    (found,) = found_in(cell(tmp_path, {0: {"Ema": [1.0, 2.0, 3.0]}, 1: {"Ema": [0.5, 0.5, 0.5]}}))
    assert found.guilty_ranks == (1,) and found.where.parameter == "head.weight"
    assert "never changes" in found.summary


def test_copies_that_are_equal_or_equal_in_the_end_are_left_alone(tmp_path: Path) -> None:
    assert not found_in(cell(tmp_path / "a", {r: {"Ema": [1.0, 2.0, 3.0]} for r in (0, 1)}))
    late = {0: {"Ema": [1.0, 2.0, 3.0]}, 1: {"Ema": [0.5, 0.6, 3.0]}}
    assert not found_in(cell(tmp_path / "b", late))
    adapted = {0: {"Ema": [1.0, 2.0, 3.0]}, 1: {"Ema": [0.5, 0.6, 0.7]}}  # each rank changes its own
    assert not found_in(cell(tmp_path / "d", adapted))
    once = {0: {"Ema": [3.0]}, 1: {"Ema": [2.0]}}
    assert not found_in(cell(tmp_path / "c", once))


def test_models_of_one_type_are_not_mixed_up_where_a_rank_evaluates_more_of_them(tmp_path: Path) -> None:
    """Rank 0 alone samples from its average first: its `Net` is another one than rank 1's."""
    sums = {0: {"Net": [1.0, 2.0], "Net 2": [5.0, 6.0]}, 1: {"Net": [5.0, 6.0]}}
    assert not found_in(cell(tmp_path, sums))


def test_without_ddp_over_all_ranks_equal_models_are_not_expected(tmp_path: Path) -> None:
    sums = {0: {"Ema": [1.0, 2.0]}, 1: {"Ema": [0.5, 0.5]}}
    assert not found_in(cell(tmp_path, sums, group=[0]))
