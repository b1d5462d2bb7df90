"""The order in which ranks failed, where a log shows it."""

from pathlib import Path

import pytest

from nsadiag.analysis.verdict import judge_evidence

STEPS = "".join(f"step {number} loss 2.31\n" for number in range(40))


def raised(before: str, error: str) -> str:
    lines = (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 52, in train',
        "    step()",
        error,
    )
    return "".join(f"{before}{line}\n" for line in lines)


def guilty(folder: Path, text: str) -> tuple[int, ...]:
    (folder / "job.log").write_text(text)
    return judge_evidence(folder).guilty_ranks


def test_of_different_errors_in_one_log_the_upper_one_is_the_cause(tmp_path: Path) -> None:
    text = raised("[rank5]: ", "KeyError: 'labels'") + STEPS + raised("[rank0]: ", "ValueError: a bad shape")
    assert guilty(tmp_path, text) == (5,)


@pytest.mark.parametrize(
    "stamp", ["2026-01-01 10:00:0{} ERROR rank {}: ", "2026-01-01T10:00:0{}Z stderr F [rank{}]: "]
)
def test_where_every_error_has_a_stamp_these_decide(tmp_path: Path, stamp: str) -> None:
    """Whoever collects lines of several hosts need not have them in order."""
    text = raised(stamp.format(9, 0), "ValueError: a bad shape") + raised(stamp.format(1, 6), "KeyError: 'x'")
    assert guilty(tmp_path, text) == (6,)


def test_one_error_of_several_ranks_is_that_of_all_of_them_however_far_apart(tmp_path: Path) -> None:
    stamp = "2026-01-01 10:00:{}0 ERROR rank {}: "
    text = "".join(raised(stamp.format(rank, rank), "FileNotFoundError: data.bin") for rank in range(4))
    assert guilty(tmp_path, text) == (0, 1, 2, 3)


def test_an_upper_error_that_only_tells_of_a_peer_is_not_the_cause(tmp_path: Path) -> None:
    lost = raised("[rank0]: ", "RuntimeError: Connection closed by peer [10.0.0.7]:41023")
    assert guilty(tmp_path, lost + STEPS + raised("[rank3]: ", "ValueError: a bad shape")) == (3,)
