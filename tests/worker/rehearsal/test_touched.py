"""A rank that is held before an access: until the other rank's has happened, also where that came first by itself."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nsadiag.evidence.rehearsal.touches import Access, Hold, Touch, came_about, touches_file
from nsadiag.worker.rehearsal import touched
from nsadiag.worker.rehearsal.touched import Touched


@pytest.mark.parametrize("had_written", [True, False])
def test_a_held_rank_sees_whether_the_other_has_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had_written: bool
) -> None:
    monkeypatch.setattr(touched, "HOLD_S", 0.5)
    socket, file = tmp_path / "socket", tmp_path / "cache.pt"
    early = Access(rank=0, what="write", path=str(file), place="train.py:13:<module>", nth=1)
    late = Access(rank=1, what="look", path=str(file), place="train.py:10:<module>", nth=1)
    if had_written:
        file.write_text("tokens")
        noted = Touch(access=early, calls=0, known={}, at_ns=0, slept=False, found=False)
        touches_file(socket, 0).write_text(json.dumps(asdict(noted)) + "\n")
    Touched(socket, 1, str(tmp_path), Hold(late=late, early=early))._wait(early)
    assert came_about(socket) == had_written
