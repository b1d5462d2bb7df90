"""Invariants of the first steps: on rows as ranks write them, which equalities are reported as broken and which are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.correctness.invariants.broken_equalities import broken_equalities
from nsadiag.analysis.rules.correctness.invariants.partial_gradients import partial_gradients
from nsadiag.analysis.rules.correctness.order.lifetime import RULES as ORDER
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.rank_conditions import setting_of_rank, write_on_one_rank
from nsadiag.worker.probes.correctness.invariants.checksums import are_among, checksums
from nsadiag.worker.probes.correctness.invariants.written import Mark

Value = Callable[[int, int], float]  # of a rank, at a step


def case_of(path: Path, parameters: dict[str, Value], steps: int = 8, coupled: bool = False) -> Case:
    """Two ranks that train these parameters, each with one number for a value."""
    run = RunDir(path=path)
    for rank in (0, 1):
        directory = run.rank(rank)
        make_private_dir(directory.path)
        write_json(directory.meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
        for step in range(steps):
            values = [
                [n, [40], int(1000 * of(rank, step)), of(rank, step), 50.0] for n, of in parameters.items()
            ]
            exchange = {
                "kind": "collective",
                "name": "all_reduce",
                "reduces": "SUM",
                "roles": ["other"],
                "shape": [8, 16],
            }
            operations = [
                {"kind": "forward", "place": "train.py:9:main", "name": "Net"},
                *([exchange] if coupled else []),
                {"kind": "backward", "place": "train.py:10:main", "value": 1.0},
                {
                    "kind": "step",
                    "place": "train.py:11:main",
                    "optimizer": 0,
                    "name": "SGD",
                    "values": values,
                },
            ]
            append_json_line(directory.invariants, {"step": step, "operations": operations})
    return Case(load_cell(path))


def drafts(found: object) -> list[Draft]:
    return [each for each in found if not isinstance(each, Declined)]  # type: ignore[attr-defined]


def gradient_order(case: Case) -> list[Draft]:
    """All that rows on the order within a step conclude."""
    return [each for rule in ORDER for each in drafts(rule.check(case))]


def equal(rank: int, step: int) -> float:
    return 1.0 + step


def own(rank: int, step: int) -> float:
    return 5.0 * rank + step + 2.0


def drifting(rank: int, step: int) -> float:
    return 3.0 + step + 0.25 * rank * (step > 0)


def test_an_equality_that_held_and_broke_is_reported_with_its_step(tmp_path: Path) -> None:
    case = case_of(
        tmp_path, {"a.weight": equal, "b.weight": lambda rank, step: step + 0.5 * rank * (step > 4)}
    )
    (found,) = drafts(broken_equalities(case))
    assert "b.weight was equal on all ranks until step 4, but not from step 5 on" in found.summary
    assert found.where is not None and found.where.step == 4


@pytest.mark.parametrize(
    "healthy",
    [
        {"a.weight": equal},
        {"a.weight": equal, "head.weight": own},  # each rank's own from the start
        {"a.weight": equal, "head.weight": drifting},  # from one seed, and not seen to be kept equal
        {
            "a.weight": lambda rank, step: step + 0.5 * rank * (step % 4 > 0)
        },  # local SGD: averaged at every fourth step
    ],
)
def test_what_was_not_seen_to_be_kept_equal_is_left_alone(tmp_path: Path, healthy: dict[str, Value]) -> None:
    assert not drafts(broken_equalities(case_of(tmp_path, healthy)))


def test_what_all_ranks_of_a_split_model_hold_may_not_drift(tmp_path: Path) -> None:
    split = {"embed.weight": equal, "first.weight": drifting, "columns.weight": own}
    (found,) = drafts(partial_gradients(case_of(tmp_path, split, coupled=True)))
    assert found.where is not None and found.where.parameter == "first.weight"


@pytest.mark.parametrize(
    ("parameters", "coupled"),
    [
        (
            {"first.weight": drifting, "columns.weight": own},
            False,
        ),  # no activations are exchanged: each trains its own
        ({"first.weight": drifting, "columns.weight": drifting}, True),  # nothing is split
        ({"first.weight": equal, "columns.weight": own}, True),
    ],
)
def test_models_that_are_not_split_are_left_alone(
    tmp_path: Path, parameters: dict[str, Value], coupled: bool
) -> None:
    assert not drafts(partial_gradients(case_of(tmp_path, parameters, coupled=coupled)))


def test_plain_steps_keep_the_order(tmp_path: Path) -> None:
    assert not gradient_order(case_of(tmp_path, {"a.weight": equal}))


def clipped(path: Path, *, written: bool = False, each: bool = False) -> Case:
    """Two ranks that clip by norms of their own and reduce behind that."""
    run = RunDir(path=path)
    for rank in (0, 1):
        directory = run.rank(rank)
        make_private_dir(directory.path)
        write_json(directory.meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
        backward = {"kind": "backward", "place": "train.py:10:main"}
        clip = {"kind": "clip", "place": "train.py:11:main", "value": 3.0 + rank, "limit": 1.0}
        reduced = {"kind": "collective", "name": "all_reduce", "reduces": "SUM", "roles": ["gradient a"]}
        stepped = {"kind": "step", "place": "train.py:13:main", "optimizer": 0, "name": "SGD"}
        micro = [backward, clip] * (2 if each else 1)
        for step in range(6):
            operations = [*micro, {**reduced, "written": written}, stepped]
            append_json_line(directory.invariants, {"step": step, "operations": operations})
    return Case(load_cell(path))


def test_clipping_before_the_average_belongs_to_algorithms_that_exchange_something_else(
    tmp_path: Path,
) -> None:
    (found,) = gradient_order(clipped(tmp_path / "plain"))
    assert "by its own norm" in found.summary
    # Deep gradient compression puts the largest elements in their place; private training clips each sample's.
    assert not gradient_order(clipped(tmp_path / "written", written=True))
    assert not gradient_order(clipped(tmp_path / "each", each=True))


def test_gradients_are_known_to_be_written_by_their_version_alone() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    mark = Mark()
    mark.set([(0, optimizer)])
    assert not mark.written()
    model.weight.grad.mul_(0.5)  # type: ignore[union-attr]
    assert mark.first_asked() and not mark.first_asked()
    mark.set([(0, optimizer)])
    assert not mark.written()
    model.weight.grad = model.weight.grad.clone()  # type: ignore[union-attr]
    assert mark.written() == [0]


def uncleared(path: Path, rewritten: set[int]) -> Case:
    """Two ranks whose gradients are there at each backward, in some steps written since the optimizer used them."""
    run = RunDir(path=path)
    for rank in (0, 1):
        directory = run.rank(rank)
        make_private_dir(directory.path)
        write_json(directory.meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
        stepped = {"kind": "step", "place": "train.py:13:main", "optimizer": 0, "name": "SGD"}
        for step in range(6):
            kept = {"kept": [0], "added": [0], **({"rewritten": [0]} if step in rewritten else {})}
            backward = {"kind": "backward", "place": "train.py:10:main", **(kept if step else {})}
            append_json_line(directory.invariants, {"step": step, "operations": [backward, stepped]})
    return Case(load_cell(path))


def test_gradients_that_decay_are_not_to_be_cleared(tmp_path: Path) -> None:
    (found,) = gradient_order(uncleared(tmp_path / "plain", set()))
    assert "never cleared" in found.summary
    assert not gradient_order(uncleared(tmp_path / "decay", {1, 2, 3}))
    # DDP moves them into other buckets after the first step.
    assert gradient_order(uncleared(tmp_path / "buckets", {1}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_flipped_bit_changes_the_checksum(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 50, dtype=torch.float64).to(dtype)
    flipped = tensor.clone()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flipped.view(bits)[1, 7] ^= 1
    (before,), (after,) = checksums([("a", tensor)]), checksums([("a", flipped)])
    assert before[:2] == after[:2] == ["a", [3, 50]]
    assert before[2] != after[2]


def test_a_copy_in_another_type_is_known_again() -> None:
    held = [torch.randn(4, 8), torch.randn(8), torch.randn(4, 8)]
    assert are_among([held[2].clone()], held)
    assert are_among([each.bfloat16() for each in held], held)
    assert not are_among([held[0].clone(), held[1] + 1], held)
    assert not are_among([torch.randn(3)], held)
    assert not are_among([], held)


def test_what_cannot_be_summed_has_no_checksum() -> None:
    meta = torch.empty(3, device="meta")
    sparse = torch.eye(3).to_sparse()
    assert checksums([("meta", meta), ("sparse", sparse), ("none", torch.empty(0))]) == []
    assert len(checksums([("flags", torch.tensor([True, False]))])) == 1


SOURCE = """
rate = 0.1 * (1 + rank)
optimizer = SGD(model.parameters(), lr=rate, weight_decay=0.1)
for step in range(9):
    if dist.get_rank() == 0 and step == 5:
        model.head.reset_parameters()
    if dist.get_rank() == 0:
        print(step)
"""


def test_the_line_that_treats_one_rank_otherwise_is_found() -> None:
    code = SourceModel({"/u/train.py": SOURCE})
    written, set_ = write_on_one_rank(code), setting_of_rank(code, "lr")
    assert written is not None and written.line == 6
    assert set_ is not None and set_.line == 2
    assert setting_of_rank(code, "weight_decay") is None
