"""What a kernel on a GPU did is heard of later: the verdict says so, and hands on what the kernel itself said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.findings import findings
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import device_assert, is_told_late
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.rules.exits.rank_exception import rank_exception
from nsadiag.evidence.documents.exceptions import Cause

# As torch 2.11 says it of an index that is out of range, once for each thread of the block.
SAID = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [156,0,0], thread: [0,0,0] "
    'Assertion `ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed.\n'
)
ASSERTED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call."


def test_the_first_assertion_of_a_kernel_is_read_off_standard_error() -> None:
    told = device_assert("step 7\n" + SAID * 3)
    assert told == (
        'vectorized_gather_kernel: assertion `ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed'
    )
    assert device_assert("AssertionError: Assertion `x` failed.\n") is None


@pytest.mark.parametrize(
    ("message", "late"),
    [
        (ASSERTED, True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA error: invalid device ordinal", False),
        ("CUDA error: out of memory", False),
        ("index out of range in self", False),
    ],
)
def test_what_is_heard_of_later_is_told_from_what_the_call_itself_did(message: str, late: bool) -> None:
    assert is_told_late(Cause(type="AcceleratorError", message=message)) == late


@pytest.mark.parametrize(("message", "late"), [(ASSERTED, True), ("index out of range in self", False)])
def test_the_verdict_says_that_the_line_is_where_it_was_heard_of(
    tmp_path: Path, message: str, late: bool
) -> None:
    cell = load_cell(unpack(archive_of("rank_exception_bad_batch"), tmp_path).path)
    first = first_break(cell)
    assert first is not None
    raised = first.rank.rank
    ranks = tuple(
        dataclasses.replace(
            r, exception=dataclasses.replace(r.exception, message=message, cause=None), stderr_tail=SAID
        )
        if r.rank == raised and r.exception
        else r
        for r in cell.ranks
    )
    cell = dataclasses.replace(cell, ranks=ranks)
    found = findings(rank_exception, Case(cell))[0]
    assert found.guilty_ranks == (raised,) and found.where and found.where.line
    assert ("vectorized_gather_kernel" in found.summary) == late
    assert bool(found.gaps) == late and (found.next or "").startswith("CUDA_LAUNCH_BLOCKING=1") == late
