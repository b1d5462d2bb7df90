"""Collectives that were issued between two captures: a record that is missing in one of them shows no motion."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.agent.stillness.motion import Seen, motion
from nsadiag.evidence.layout import RankDir, RunDir, make_private_dir, write_json

STATE = {"t_mono_ns": 0, "pid": 1, "state": "S", "cpu_s": 0.0}


def looked(rank: RankDir, number: int, issued: int | None) -> None:
    """A capture, with a record of so many collectives, or without one."""
    capture = rank.capture(number)
    make_private_dir(capture.path)
    write_json(capture.proc, {**STATE, "t_mono_ns": number * 10**9})
    if issued is not None:
        entries = [
            {
                "process_group": ["0", "default_pg"],
                "collective_seq_id": n,
                "profiling_name": "gloo:all_reduce",
            }
            for n in range(1, issued + 1)
        ]
        write_json(capture.flight_recorder, {"entries": entries})


@pytest.mark.parametrize(
    ("first", "second", "moved"),
    [(36, 36, 0), (36, 38, 2), (None, 36, 0), (36, None, 0)],
    ids=["still", "two more", "the first look had none", "the second had none"],
)
def test_only_two_records_show_motion(
    tmp_path: Path, first: int | None, second: int | None, moved: int
) -> None:
    rank = RunDir(path=tmp_path).rank(0)
    looked(rank, 1, first)
    looked(rank, 2, second)
    found = motion(rank, (1, 2), Seen(), [])
    assert found is not None and found.collectives == moved
