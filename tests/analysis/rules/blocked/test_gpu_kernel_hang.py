"""A kernel that never ends on a GPU that others use as well: it has no more than its share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.findings import findings
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.rules.blocked.gpu_kernel_hang import gpu_kernel_hang


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ([100.0, 100.0, 100.0], True),
        ([40.0, 52.0, 16.0], True),
        ([12.0, 24.0, 16.0], True),  # one of eight
        ([4.0, 0.0, 52.0], False),
        ([None, None, None], False),
    ],
)
def test_the_share_of_a_process_is_what_its_looks_had_at_the_median(
    tmp_path: Path, shares: list[float | None], found: bool
) -> None:
    cell = load_cell(unpack(archive_of("gpu_kernel_hang_flag_wait"), tmp_path).path)
    look, change = cell.watch.looks[-1], dataclasses.replace
    looks = tuple(change(look, motions=tuple(change(m, gpu_pct=pct) for m in look.motions)) for pct in shares)
    cell = change(cell, watch=change(cell.watch, looks=looks))
    assert bool(findings(gpu_kernel_hang, Case(cell))) == found
