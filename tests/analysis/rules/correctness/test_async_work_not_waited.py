"""Buffers of asynchronous collectives that the next lines use before anybody has waited."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.findings import findings, ranks
from support.tables import table

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.rules.correctness.async_work_not_waited import async_work_not_waited
from nsadiag.evidence.layout import append_json_line
from nsadiag.evidence.records import Finding

HOOK = """
def hook(self, p):
    wire = p.grad.to(torch.bfloat16)
    {}
"""
START = "work = dist.all_reduce(wire, async_op=True)"
USED = {
    "copied back at once": [START, "p.grad.copy_(wire)  # USED", "self.open.append((work, wire))"],
    "kept first": [START, "self.open.append((work, wire))", "mean = wire / self.world  # USED"],
    "with the handle kept at once": ["self.open.append(dist.all_reduce(wire, async_op=True))", "wire.div_(self.world)  # USED"],
    "a view of it": [START, "p.grad.add_(wire.view(-1)[:8])  # USED"],
    "the gradient itself": ["work = dist.all_reduce(p.grad, async_op=True)", "p.grad /= self.world  # USED", "work.wait()"],
}  # fmt: skip
NOT_USED = {
    "waited for": [START, "work.wait()", "p.grad.copy_(wire)"],
    "handed to who waits": [START, "finish(work)", "p.grad.copy_(wire)"],
    "waited for in a loop": [
        START, "self.open.append(work)", "for each in self.open:\n        each.wait()", "p.grad.copy_(wire)"
    ],
    "only kept": [START, "self.open.append((work, wire, wire.numel()))"],
    "another tensor by then": [START, "self.open.append((work, wire))", "wire = p.grad.clone()", "p.grad.copy_(wire)"],
    "what is only sent": ["work = dist.all_gather(parts, wire, async_op=True)", "p.grad.copy_(wire)"],
    "not asynchronous": ["work = dist.all_reduce(wire)", "p.grad.copy_(wire)"],
    "perhaps waited for": [START, "if self.eager:\n        work.wait()", "p.grad.copy_(wire)"],
}  # fmt: skip


def judged(
    folder: Path, lines: list[str], *, sums: tuple[float, float] = (1.0, 2.0), shape: str = "32,8"
) -> list[Finding]:
    """By a job in which each rank's copy has this sum after the first step, and that copies until then."""
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(textwrap.dedent(HOOK).format("\n    ".join(lines)))
    run = ranks(folder / "run", 2)
    for rank, after in enumerate(sums):
        for since, value in ((0, 0.5), (1, after)):
            row: dict[str, Any] = {
                "step": since,
                "since": since,
                "subject": [0, 1],
                "issued": 7 * since,
                "backwards": since,
            }
            append_json_line(run.rank(rank).replicas, {**row, "parameters": [["head.weight", [32, 8], value, 9.0]]})  # fmt: skip
    number = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if "dist." in text)
    op = "all_gather" if "all_gather" in lines[0] else "all_reduce"
    call = {"op": op, "place": f"{script}:{number}:hook", "tensors": f"bfloat16[{shape}]"}
    cell = load_cell(run.path)
    case = Case(cell)
    case.__dict__["asked"] = table([{**call, "rank": rank} for rank in (0, 1) for _ in range(4)])
    return findings(async_work_not_waited, case)


@pytest.mark.parametrize("lines", USED.values(), ids=USED)
def test_a_buffer_that_is_used_right_after_is_named_where_the_replicas_part(
    tmp_path: Path, lines: list[str]
) -> None:
    (found,) = judged(tmp_path, lines)
    assert (found.outcome, found.guilty_ranks, found.where.step) == ("wrong", (0, 1), 1)
    assert found.where.code and "# USED" in found.where.code


@pytest.mark.parametrize("lines", NOT_USED.values(), ids=NOT_USED)
def test_a_buffer_that_somebody_may_have_waited_for_is_left_alone(tmp_path: Path, lines: list[str]) -> None:
    assert judged(tmp_path, lines) == []


def test_where_the_copies_stay_equal_or_only_a_metric_is_reduced_nothing_is_said(tmp_path: Path) -> None:
    lines = USED["copied back at once"]
    assert judged(tmp_path / "equal", lines, sums=(1.0, 1.0)) == []
    assert judged(tmp_path / "metric", lines, shape="2") == []
