"""What is copied from a screen, on which long lines were broken."""

from __future__ import annotations

import textwrap

import pytest

from nsadiag.analysis.ingest.logs import numbered, read_log
from nsadiag.analysis.ingest.messages.wrapped import unwrapped

REPORT = (
    "[rank{rank}]:[E1128 11:56:57.104938268 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=28956, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600038 milliseconds before timing out.\n"
    "[rank{rank}]:[E1128 11:56:57.104938268 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an "
    "error or timeout) detected by watchdog at work: 28956, last enqueued NCCL work: 28960, last completed NCCL work: 28955.\n"
)
WHOLE = "".join(REPORT.format(rank=rank) for rank in range(4))


def broken(text: str, width: int) -> str:
    """As a terminal of that width shows it."""
    return "".join(
        f"{line[at : at + width]}\n" for line in text.splitlines() for at in range(0, len(line), width)
    )


@pytest.mark.parametrize("width", [72, 80, 120, 183, 211])
def test_reports_are_read_whatever_the_width_of_the_screen(width: int) -> None:
    found = read_log(numbered(broken(WHOLE, width))).timed_out
    assert [(each.rank, each.seq, each.enqueued, each.completed) for each in found] == [
        (rank, 28956, 28960, 28955) for rank in range(4)
    ]


def test_reports_are_read_where_lines_were_broken_between_words() -> None:
    lines = [part for line in WHOLE.splitlines() for part in textwrap.wrap(line, 150, drop_whitespace=False)]
    found = read_log(enumerate(lines, 1)).timed_out
    assert [(each.rank, each.completed) for each in found] == [(rank, 28955) for rank in range(4)]


def test_a_report_has_the_number_of_the_line_in_which_it_begins() -> None:
    found = read_log(numbered("step 1\n" + broken(WHOLE, 100))).timed_out
    assert found[0].line == 2


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        "".join(f"│ {n:70} │\n" for n in range(9)),
        "".join(f"{'=' * 80}\nstep {n}\n" for n in range(9)),
        "".join(f"step {n} {'x' * 60}\n\n" for n in range(9)),
    ],
)
def test_lines_that_are_whole_stay_as_they_are(text: str) -> None:
    assert list(unwrapped(numbered(text))) == list(numbered(text))
