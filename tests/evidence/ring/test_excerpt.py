"""A black box made smaller reads like a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.evidence.ring.excerpt import excerpt
from nsadiag.evidence.ring.reader import read_blackbox


@pytest.mark.parametrize("written", [1, 5, 30, 100], ids=lambda n: f"{n} events")
@pytest.mark.parametrize("kept", [1, 7, 64])
def test_the_newest_events_and_all_names_are_kept(tmp_path: Path, written: int, kept: int) -> None:
    box = BlackBox(tmp_path / "blackbox.bin", rank=3, world_size=4, capacity=32, chunks=64)
    for number in range(written):
        box.emit(Kind.COLLECTIVE, Phase.BEGIN, box.names(f"call {number % 5}"), number)
    whole = read_blackbox(tmp_path / "blackbox.bin")
    (tmp_path / "small.bin").write_bytes(excerpt((tmp_path / "blackbox.bin").read_bytes(), kept))
    small = read_blackbox(tmp_path / "small.bin")
    assert list(small.decode()) == list(whole.decode())[-kept:]
    assert small.gaps == () and small.header is not None and small.header.rank == 3
    assert (tmp_path / "small.bin").stat().st_size < (tmp_path / "blackbox.bin").stat().st_size


def test_what_is_no_box_is_refused() -> None:
    with pytest.raises(ValueError):
        excerpt(b"something else" * 1000, 10)
