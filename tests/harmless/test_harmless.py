"""Programs of many kinds do under `nsadiag run` what they do without it (docs/harmless.md)."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import parity
import pytest
import suite

# Families whose known differences have all been gone through, program by program; of the others `make test-all` and
# benchmarks/cost/harmless.py say how they stand.
GONE_THROUGH = ("identity", "torch")
# In the everyday run: one in so many of those that share a process, all in one. A process of each one's own costs seconds, and what
# all programs have in common is checked there too: the same output, files, exit code and processes left (parity.py).
ONE_IN = 3
DOC = Path(__file__).resolve().parents[2] / "docs" / "harmless.md"


def every_day(program: suite.Program) -> bool:
    alike = program.family in GONE_THROUGH and program.how == "many" and not program.slow
    return alike and zlib.crc32(program.name.encode()) % ONE_IN == 0


def _cases() -> Iterator[object]:
    everyday = [p for p in suite.each() if every_day(p)]
    p = suite.together(everyday)
    yield pytest.param(p, id=p.name, marks=pytest.mark.timeout(900))
    for p in suite.batched([p for p in suite.each() if p not in everyday]):
        yield pytest.param(p, id=f"{p.name} slow", marks=(pytest.mark.slow, pytest.mark.timeout(1800)))


@pytest.mark.parametrize("program", _cases())
def test_a_program_is_the_same_with_nsadiag_as_without(program: suite.Program, tmp_path: Path) -> None:
    if program.lacks():
        pytest.skip(f"needs {program.lacks()}")
    judge(program, parity.differences(program, *parity.both(program, tmp_path)))


def judge(program: suite.Program, found: dict[str, list[str]]) -> None:
    """Nothing differs but what is known to, and all of that does."""
    known = {p.name for p in program.members or (program,) if p.differs_today or p.by_design}
    new = {name: changes for name, changes in found.items() if name not in known}
    assert not new, "\n".join(line for name, changes in new.items() for line in (name, *changes))
    mended = sorted(known - found.keys())
    assert not mended, (
        f"equal now: take `# differs-today` or `# by-design` out of the head of {', '.join(mended)}"
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "program", [pytest.param(p, id=p.name) for p in suite.batched(suite.each()) if p.how in suite.BATCHED]
)
def test_a_program_is_the_same_with_every_probe(program: suite.Program, tmp_path: Path) -> None:
    judge(program, parity.differences(program, *parity.both(program, tmp_path, probes="full,parity")))


def test_every_program_says_how_it_is_run() -> None:
    programs = suite.each()
    assert len(programs) >= 200
    for program in programs:
        assert program.command()
        assert program.how != "shell" or program.line, program.name


def test_every_difference_by_design_is_a_row_of_the_contract_and_every_row_is_shown() -> None:
    anchors = set(re.findall(r'<a name="([\w-]+)">', DOC.read_text()))
    assert {p.by_design for p in suite.each() if p.by_design} == anchors


def test_a_difference_is_told_by_program_and_stream() -> None:
    program = suite.Program(name="family/(many)", how="many", files=(Path("one.py"), Path("two.py")), members=(
        suite.Program(name="family/one", how="many", files=()), suite.Program(name="family/two", how="many", files=()),
    ))  # fmt: skip
    plain = parity.Outcome(
        code=0, stdout=b"=== one\na\n=== two\nb\n=== end\n", stderr=b"", files={"two/x": "1"}, left=0
    )
    seen = parity.Outcome(code=0, stdout=b"=== one\na\n=== two\nc\n=== end\n", stderr=b"", files={}, left=0)
    assert parity.differences(program, plain, seen) == {
        "family/two": ["stdout: - b", "stdout: + c", "file two/x: 1 -> None"]
    }
    assert parity.differences(program, plain, plain) == {}
