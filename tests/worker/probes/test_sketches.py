"""Sketches of shards add up to the whole's, and tell how far two tensors are apart."""

from __future__ import annotations

import pytest
import torch

from nsadiag.worker.probes.correctness.fingerprints import digest, precisions, randomness
from nsadiag.worker.probes.correctness.sketches import BUCKETS, run_of, sketch_box, sketch_run

SHAPE = (37, 53)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return sketch_run([tensor], 0)[0]


@pytest.fixture
def tensor() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cut", [1, 31, 700, 1960])
def test_runs_add_up(tensor: torch.Tensor, cut: int) -> None:
    flat = tensor.flatten()
    parts = sketch_run([flat[:cut]], 0)[0] + sketch_run([flat[cut:]], cut)[0]
    torch.testing.assert_close(parts, whole(tensor), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_columns_and_rows_add_up_in_chunks_of_any_size(
    tensor: torch.Tensor, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole(tensor)
    monkeypatch.setitem(sketch_run.__globals__["CHUNK"], "cpu", chunk)
    left = sketch_box([tensor[:, :20].contiguous()], SHAPE, ((0, 37), (0, 20)))[0]
    upper = sketch_box([tensor[:30, 20:].contiguous()], SHAPE, ((0, 30), (20, 33)))[0]
    rest = sketch_box([tensor[30:, 20:].contiguous()], SHAPE, ((30, 7), (20, 33)))[0]
    torch.testing.assert_close(left + upper + rest, expected, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(sketch_run([tensor], 0)[0], expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("box", "run"),
    [
        (((3, 5), (0, 53)), (159, 424)),
        (((3, 1), (10, 20)), (169, 189)),
        (((0, 37), (0, 20)), None),
        (((2, 2), (52, 1)), None),
    ],
)
def test_what_lies_in_one_run_is_known_as_one(
    box: tuple[tuple[int, int], ...], run: tuple[int, int] | None
) -> None:
    assert run_of(SHAPE, box) == run


def differences() -> dict[str, torch.Tensor]:
    row, column, one = torch.zeros(SHAPE), torch.zeros(SHAPE), torch.zeros(SHAPE)
    row[5], column[:, 7], one[9, 9] = 1.0, 1.0, 1.0
    steady = torch.ones(SHAPE)
    noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2))
    return {"row": row, "column": column, "one": one, "steady": steady, "noise": noise}


@pytest.mark.parametrize("kind", differences())
def test_the_distance_of_sketches_is_that_of_the_tensors(tensor: torch.Tensor, kind: str) -> None:
    change = differences()[kind]
    estimates = []
    for scale in (1e-3, 1.0):
        apart = whole(tensor + scale * change) - whole(tensor)
        estimates.append(float(apart[:BUCKETS].norm() / (scale * change.norm())))
    assert all(0.5 < estimate < 2 for estimate in estimates), estimates


def test_the_sum_of_squares_is_exact(tensor: torch.Tensor) -> None:
    assert float(whole(tensor)[BUCKETS]) == pytest.approx(float(tensor.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8, torch.float32, torch.bfloat16, torch.int16])
def test_digests_of_a_batch_add_up_over_ranks_in_any_order(kind: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    batch = (torch.rand(8, 5, 3, generator=draw) * 200 - 99).to(kind)
    found, parts = digest(batch), [digest(batch[[0, 2, 4, 6]]), digest(batch[[7, 5, 3, 1]])]
    assert found is not None and parts[0] is not None and parts[1] is not None
    exact = not kind.is_floating_point
    torch.testing.assert_close(
        parts[0] + parts[1], found, rtol=0 if exact else 1e-12, atol=0 if exact else 1e-9
    )
    other = digest((torch.rand(8, 5, 3, generator=draw) * 200 - 99).to(kind))
    assert other is not None and not torch.allclose(other[2:], found[2:], rtol=1e-3)


def test_randomness_changes_when_a_number_is_drawn_and_only_then() -> None:
    before = randomness()
    assert randomness() == before
    torch.rand(1)
    assert randomness() != before


def test_the_coarsest_precision_is_read_off_the_graph() -> None:
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = layer(torch.ones(2, 4)).float().sum()
    assert precisions([loss]) == {"float32", "bfloat16"}
    assert precisions([layer(torch.ones(2, 4)).sum()]) == {"float32"}
