"""The line of a job's own source that had the signal sent of which a rank died."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.findings import findings

from nsadiag.analysis.case import Case
from nsadiag.analysis.rules.exits.rank_killed import rank_killed
from nsadiag.analysis.scale.digests.cell import load_cell
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.timers import only_alarm

GUARDED = "import signal\nsignal.alarm(LIMIT_S)\nwork()\nsignal.alarm(0)\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (GUARDED, 2),
        ("from signal import alarm as wake\nwake(5)", 2),
        ("import signal as s\ns.setitimer(s.ITIMER_REAL, 0.5, 1.0)\ns.setitimer(s.ITIMER_REAL, 0)", 2),
        ("import signal\nsignal.setitimer(signal.ITIMER_PROF, 5)", None),
        # Which of the two it was.
        (GUARDED + "signal.alarm(60)", None),
        # Handled, or so it was for a while.
        (GUARDED + "signal.signal(signal.SIGALRM, stop)", None),
        (GUARDED + "for each in mine:\n    signal.signal(each, stop)", None),
        (GUARDED + "signal.signal(signal.SIGTERM, stop)\nsignal.signal(signal.SIGALRM, signal.SIG_DFL)", 2),
        ("pager.alarm(5)", None),
    ],
)
def test_the_one_timer_that_nothing_handles_is_found(source: str, line: int | None) -> None:
    cell: Any = SimpleNamespace(code=SourceModel({"/home/u/train.py": source}))
    found = only_alarm(cell.code, signal.SIGALRM)
    assert (found.line if found else None) == line
    assert only_alarm(cell.code, signal.SIGKILL) is None


@pytest.mark.parametrize("sent", [False, True])
def test_a_rank_that_its_own_timer_ended_is_shown_at_the_line_that_sets_it(
    tmp_path: Path, sent: bool
) -> None:
    """Unless a rank is known to have sent it."""
    run = RunDir(path=tmp_path)
    for number in (0, 1):
        make_private_dir(run.rank(number).path)
        write_json(run.rank(number).meta, {"rank": number, "world_size": 2, "pid": 100 + number})
    if sent:
        row = {
            "call": "kill",
            "to": 100,
            "signal": 14,
            "place": "/home/u/train.py:3:watch",
            "t_mono_ns": 5 * 10**9,
        }
        append_json_line(run.rank(1).signals, row)
    each = {"exit_code": None, "by_us": False, "clean": False, "steps": 4}
    ends = {
        0: {"pid": 100, "t_s": 5.0, "signal": 14, **each},
        1: {"pid": 101, "t_s": 6.0, "signal": 15, **each},
    }
    write_json(run.ends, ends)
    write_json(run.watch, {"started_mono_ns": 0, "ended_s": 9.0, "stopped": None, "looks": []})
    cell = dataclasses.replace(load_cell(tmp_path), sources={"/home/u/train.py": GUARDED})
    (found,) = findings(rank_killed, Case(cell))
    assert found.guilty_ranks == (0,) and found.where and found.where.line == (3 if sent else 2)
    assert ("timer" in found.summary, "timer" in str(found.fix)) == (not sent, not sent)
