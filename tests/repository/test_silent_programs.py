"""The programs of benchmarks/verdicts/silent_programs/: each variant is Python, and each fault has a line that a verdict may name."""

from __future__ import annotations

from pathlib import Path

import pytest
from silent import KINDS, PROGRAMS, Program, programs

ALL = programs()


@pytest.mark.parametrize("program", ALL, ids=[program.name for program in ALL])
def test_each_variant_is_a_program_and_each_fault_has_a_line(program: Program) -> None:
    compile(program.source, program.name, "exec")
    assert program.kind in KINDS
    assert bool(program.places) == (program.kind != "healthy")


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py.in")), ids=lambda path: path.stem)
def test_marks_name_variants_of_their_file(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if "  #: " in line]
    marked = {mark[1:] for line in lines for mark in line.partition("  #: ")[2].split()}
    known = {program.name.split("/")[1] for program in ALL if program.name.startswith(path.name[:-6] + "/")}
    assert marked <= known


def test_there_are_sixty_faults_and_as_many_healthy_programs() -> None:
    healthy = sum(program.kind == "healthy" for program in ALL)
    assert healthy >= 60
    assert len(ALL) - healthy >= 60
