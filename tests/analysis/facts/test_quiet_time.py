"""How long a rank has been at one place: what a look at its start says of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.analysis.facts.quiet_time import in_one_place_s
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json


@pytest.mark.parametrize(
    ("moved_s", "lasted"),
    [
        (20.0, 40.0),  # the first look, at imports, was over by then
        (11.0, 0.0),  # it was not: the lines changed in the silence
    ],
)
def test_a_look_at_what_was_before_the_silence_says_nothing_of_it(
    tmp_path: Path, moved_s: float, lasted: float
) -> None:
    run = RunDir(path=tmp_path / "run")
    rank = run.rank(0)
    for path in (run.path, rank.path):
        make_private_dir(path)
    write_json(rank.meta, {"rank": 0, "world_size": 1, "pid": 1})
    for number, line in enumerate((3, 4, 9, 9), start=1):
        make_private_dir(rank.capture(number).path)
        frames = [{"filename": "/home/me/train.py", "name": "main", "line": line}]
        write_json(
            rank.capture(number).py_spy, [{"thread_name": "MainThread", "os_thread_id": 1, "frames": frames}]
        )
    looks = [
        {
            "t_s": t_s,
            "judgement": "moving",
            "first": n,
            "second": n + 1,
            "motions": [{"rank": 0, "seconds": 2.0, "frames_changed": n == 1}],
        }
        for t_s, n in ((10.0, 1), (50.0, 3))
    ]
    # The newest two looks have to show no change: a third one, of which nothing is kept, shows it as well.
    looks.append({**looks[-1], "t_s": 55.0})
    write_json(
        run.watch, {"looks": looks, "last_progress_s": moved_s, "ending_s": 60.0, "longest_quiet_s": 1.0}
    )
    cell = load_cell(run.path)
    assert in_one_place_s(cell, cell.rank(0)) == lasted
