"""The values that a rehearsal's calls come to are those of a backend."""

from __future__ import annotations

import pytest
import torch

from nsadiag.worker.rehearsal.link import bytes_of
from nsadiag.worker.rehearsal.values import Shape, read, reduced, shape_of, write

INPUTS = [torch.tensor([1, 6, 4]), torch.tensor([3, 2, 5])]


@pytest.mark.parametrize(
    ("reduction", "result"),
    [
        ("SUM", [4, 8, 9]),
        ("PRODUCT", [3, 12, 20]),
        ("MIN", [1, 2, 4]),
        ("MAX", [3, 6, 5]),
        ("BAND", [1, 2, 4]),
        ("BOR", [3, 6, 5]),
        ("BXOR", [2, 4, 1]),
    ],
)
def test_values_are_reduced_over_the_members(reduction: str, result: list[int]) -> None:
    assert reduced(INPUTS, reduction).tolist() == result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_mean_keeps_its_dtype(dtype: torch.dtype) -> None:
    mean = reduced([torch.ones(4, dtype=dtype), torch.zeros(4, dtype=dtype)], "AVG")
    assert mean.dtype is dtype and mean.tolist() == [0.5] * 4


def test_an_unknown_reduction_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such reduction: MEDIAN"):
        reduced(INPUTS, "MEDIAN")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_tensors_are_what_they_were_after_their_way(dtype: torch.dtype) -> None:
    sent = [torch.arange(6).reshape(2, 3).to(dtype), torch.empty(0, dtype=dtype), torch.ones((), dtype=dtype)]
    received = read(b"".join(bytes_of(tensor) for tensor in sent), [shape_of(tensor) for tensor in sent])
    assert all(torch.equal(a.reshape(-1), b) for a, b in zip(sent, received, strict=True))


def test_what_is_not_contiguous_is_written_where_it_belongs() -> None:
    matrix = torch.zeros(2, 3)
    write(matrix.T, torch.arange(6.0))
    assert matrix.T.reshape(-1).tolist() == list(range(6))


def test_fewer_bytes_than_were_promised_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 bytes for 1 elements"):
        read(b"abc", [Shape(count=1, dtype=torch.float32)])
