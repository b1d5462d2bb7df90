"""The screen of `nsadiag top`: who is behind comes first, at any width, of few ranks and of many; and its keys."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs import BIN, Jobs

from nsadiag.analysis.snapshot import RankNow
from nsadiag.commands.live.keys import Keys
from nsadiag.commands.live.screen import Job, View, in_order, screen_of
from nsadiag.evidence.ring.blackbox import BlackBox, Counter, Kind, Phase
from nsadiag.reports.terminal.screen import Screen

JOB = Job(name="train", state="running", elapsed_s=754.0, hosts=("node0", "node1"))


def ranks(world: int, late: int) -> list[tuple[str, RankNow]]:
    """All in a collective that one has not come to."""
    one = RankNow(
        rank=0, host="node0", pid=1, step=831, rate_per_s=1.2, phase="all_reduce", place="train.py:41",
        last="all_reduce", quiet_s=12.0, ended=False, parts={"compute": 0.4, "peers": 0.5},
    )  # fmt: skip
    found = [replace(one, rank=n) for n in range(world)]
    peers = tuple(n for n in range(world) if n != late)
    found[late] = replace(
        one, rank=late, step=830, phase="between", place="", quiet_s=12.2, waited_for_s=12.1, waiters=peers
    )
    return [("run", rank) for rank in found]


def shown(
    rows: list[tuple[str, RankNow]], width: int, height: int = 24, view: View | None = None
) -> list[str]:
    screen = Screen(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    picture = screen_of(
        rows, JOB, view or View(), screen, line_of=lambda rank: "data.py:7 in fetch", height=height
    )
    screen.print(picture)
    return screen.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 100, 200])
@pytest.mark.parametrize("world", [8, 64, 512])
def test_who_is_behind_comes_first_with_its_line(world: int, width: int) -> None:
    lines = shown(ranks(world, late=world // 2), width)
    assert len(lines) <= 24 and max(map(len, lines)) <= width
    assert lines[0].startswith(" RUNNING  train") and f"{world} ranks on 2 hosts" in lines[0]
    assert lines[1].strip().startswith(f"rank {world // 2} is waited for, 12.1 s by ")
    first = lines[4].split()
    assert first[:3] == [str(world // 2), "830", "(-1)"] and "data.py:7" in lines[4]
    assert ("1-" in lines[-1]) == (world > 20)


def test_a_wide_screen_has_the_parts_of_a_step_in_the_words_of_the_report() -> None:
    lines = shown(ranks(8, late=3), 200)
    assert "compute  waiting" in lines[3] and "40 %" in lines[4] and "50 %" in lines[4]


def test_keys_sort_scroll_and_leave() -> None:
    view, rows = View(), ranks(64, late=5)
    assert in_order(rows, "b")[0][1].rank == 5 and in_order(rows, "r")[0][1].rank == 0
    assert view.press("r", page=10) and view.press("page down", page=10)
    lines = shown(rows, 100, 20, view)
    assert lines[4].split()[0] == "10" and "11-25 of 64, by rank" in lines[-1]
    assert view.press("end", page=10) and shown(rows, 100, 20, view)[-2].split()[0] == "63"
    assert view.press("?", page=10) and any("page down" in line for line in shown(rows, 100, 20, view))
    assert view.press("p", page=10) and view.is_paused and not view.press("q", page=10)


@pytest.mark.parametrize(("typed", "key"), [(b"q", "q"), (b"\x1b[6~", "page down"), (b"j", "down")])
def test_a_key_is_known_without_enter(typed: bytes, key: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, typed)
    assert Keys(reader).wait(60) == key
    os.close(reader)
    os.close(writer)


def test_the_screen_in_a_real_terminal_ends_by_q_and_leaves_the_last_look(jobs: Jobs) -> None:
    run = jobs.directory / "run"
    write_rank(run)
    master, slave = pty.openpty()
    line = [str(BIN / "nsadiag"), "top", "run"]
    environment = {**jobs.environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    started = subprocess.Popen(
        line, cwd=jobs.directory, env=environment, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    said = b""
    while b"q leave" not in said:
        said += os.read(master, 1 << 16)
    assert b"\x1b[?1049h" in said, "a screen of its own"
    os.write(master, b"q")
    while chunk := read(master):
        said += chunk
    assert started.wait() == 0
    last = said.partition(b"\x1b[?1049l")[2].decode()
    assert "1 rank on" in last and "all_reduce" in last and "train.py:41" in last


def read(master: int) -> bytes:
    try:
        return os.read(master, 1 << 16)
    except OSError:  # nobody has the other end any more
        return b""


def write_rank(run: Path) -> None:
    directory = run / "ranks" / "00000"
    directory.mkdir(parents=True)
    (run / "run.json").write_text(
        '{"kind": "run", "name": "train", "started_at": "2026-01-01T00:00:00+00:00"}'
    )
    box = BlackBox(directory / "blackbox.bin", rank=0, world_size=1)
    box.emit(Kind.STEP, Phase.POINT, 0, 1)
    box.count(Counter.STEPS, 1)
    box.emit(
        Kind.COLLECTIVE, Phase.BEGIN, box.names("all_reduce"), 1, 8, box.names("g\t/job/train.py:41:main")
    )
