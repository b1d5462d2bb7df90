"""The text of a log as lines: true numbers whatever the encoding and length, and of a long one what is worth a closer look."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
from pathlib import Path

import pytest

from nsadiag.analysis.external.inputs.files import InputFile
from nsadiag.analysis.external.inputs.interest import BLOCKS, INTEREST, Sieve
from nsadiag.analysis.external.inputs.text import HEAD_BYTES, TAIL_BYTES, Lines, rows_at
from nsadiag.analysis.ingest.messages.table import ROWS

RAISED = ["[rank3]: Traceback (most recent call last):", '[rank3]:   File "/job/train.py", line 52, in train', "[rank3]:     step()", "[rank3]: Odd: it is"]  # fmt: skip
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
    "rho",
    "sigma",
]


def found(path: Path) -> InputFile:
    return InputFile(path.name, str(path), str(path.parent))


def lines(path: Path) -> list[tuple[int, str]]:
    return list(Lines(found(path)))


def steps(count: int, kind: str) -> list[str]:
    chance = random.Random(0)
    if kind == "words":
        return [f"[rank{n % 4}]: {' '.join(chance.choices(WORDS, k=12))}" for n in range(count)]
    said = "reconstruction error" if kind == "errors" else "loss"
    return [f"[rank{n % 4}]: step {n // 4} {said} 0.{n} tokens/s 13{n % 100}" for n in range(count)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_the_same_in_each_encoding(tmp_path: Path, encoding: str, end: str) -> None:
    texts = ["a Stoß", "", "b", "last"]
    (tmp_path / "log").write_bytes(end.join(texts).encode(encoding))
    read: dict[int, str] = {}
    for number, text in lines(tmp_path / "log"):
        read[number] = text
    assert [read[number] for number in sorted(read)] == texts


def test_each_state_of_a_progress_bar_is_of_its_line(tmp_path: Path) -> None:
    bar = "\r".join(f"{n}%" for n in range(1000))
    (tmp_path / "log").write_bytes(f"first\n{bar}\rValueError: x\rdone\nlast\n".encode())
    read = lines(tmp_path / "log")
    assert read[0] == (1, "first") and read[-1] == (3, "last")
    assert {number for number, _ in read[1:-1]} == {2}
    assert (2, "ValueError: x") in read and (2, "done") in read and len(read) < 100


@pytest.mark.parametrize("kind", ["steps", "words", "errors"])
@pytest.mark.parametrize("packed", [False, True])
def test_of_a_long_log_the_failure_in_its_middle_is_read_whole_with_true_numbers(
    tmp_path: Path, kind: str, packed: bool
) -> None:
    rows = steps(200_000, kind)
    rows[60_000:60_000] = RAISED
    text = "\n".join(rows) + "\n"
    assert len(text) > 2 * (HEAD_BYTES + TAIL_BYTES)
    path = tmp_path / ("log.gz" if packed else "log")
    path.write_bytes(gzip.compress(text.encode(), 1) if packed else text.encode())
    read = lines(path)
    assert all(rows[number - 1] == text for number, text in read)
    assert [(60_001 + at, text) for at, text in enumerate(RAISED)] == [
        each for each in read if 60_001 <= each[0] <= 60_004
    ]
    assert len(read) < len(rows) / 2
    assert read[-1] == (len(rows), rows[-1])


def test_numbers_are_those_that_grep_prints(tmp_path: Path) -> None:
    rows = [*steps(40_000, "steps"), "a\rb\r", "x\0y", *RAISED, *steps(40_000, "words")]
    (tmp_path / "log").write_text("\n".join(rows), newline="")
    told = subprocess.run(
        ["grep", "-a", "-n", "Traceback", str(tmp_path / "log")], capture_output=True, text=True, check=True
    )
    number = next(number for number, text in lines(tmp_path / "log") if "Traceback" in text)
    assert int(told.stdout.partition(":")[0]) == number == 40_003


def test_a_rank_that_wrote_long_ago_is_still_known(tmp_path: Path) -> None:
    quiet = [row.replace("[rank3]", "[rank2]") for row in steps(120_000, "steps")]
    rows = [*steps(60_000, "steps"), "[rank3]: my last words", *quiet]
    (tmp_path / "log").write_text("\n".join(rows))
    assert (60_001, "[rank3]: my last words") in lines(tmp_path / "log")


def test_lines_can_be_read_again_by_their_numbers(tmp_path: Path) -> None:
    rows = steps(50_000, "words")
    (tmp_path / "log").write_text("\n".join(rows))
    assert rows_at(found(tmp_path / "log"), {1, 25_000, 50_000, 50_001}) == {
        1: rows[0], 25_000: rows[24_999], 50_000: rows[-1]
    }  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.makes.__name__}: {row.mark}")
def test_each_message_of_the_table_is_worth_a_closer_look(row: object) -> None:
    """In a long log a line that is not would be passed over."""
    example: str = row.example  # type: ignore[attr-defined]
    read = [line for line in example.split("\n") if row.regex.search(line)]  # type: ignore[attr-defined]
    told = re.sub(r"\d", "", (read or [example])[0]).encode()
    assert INTEREST.search(told), told


@pytest.mark.parametrize("word", BLOCKS)
def test_a_line_that_tells_of_a_failure_is_found_in_prose(word: str) -> None:
    """Also where so many lines like no other came before that few more of them are looked at."""
    prose = random.Random(5)
    rows = [" ".join(prose.choices(WORDS, k=9)).encode() for _ in range(30_000)]
    sieve = Sieve()
    for _ in range(3):
        prose.shuffle(rows)
        sieve.wanted(b"\n".join(rows), rows)
    rows[15_000] = f"quiet {word} quiet".encode()
    assert 15_000 in sieve.wanted(b"\n".join(rows), rows)
