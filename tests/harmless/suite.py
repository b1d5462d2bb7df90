"""The programs of the suite: one file each, and what its head says about how to run it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS, PRELUDE = HERE / "programs", HERE / "prelude"
BIN = Path(sys.executable).parent
HEAD = re.compile(
    r"# (how|exits|stdin|needs|env|probes|slow|alone|unordered|apart|differs-today|by-design|line)\b:? ?(.*)"
)
BATCHED = ("many", "ranks")  # in one process
EACH = ("rank", "python", "shell")  # in processes of their own, one after another in one job
RANK = ("env", "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29517")
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program, or several that share a process; `how` is the first word of its head."""

    name: str
    how: str
    arguments: tuple[str, ...] = ()
    files: tuple[Path, ...]
    exits: int = 0  # its exit code without nsadiag
    line: str = ""
    stdin: str = ""
    needs: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    probes: str = "light"
    slow: bool = False
    alone: bool = False
    unordered: bool = False
    apart: tuple[str, ...] = ()  # what is not compared
    differs_today: str = ""
    by_design: str = ""
    members: tuple[Program, ...] = ()

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the programs in it."""
        return tuple(m.name for m in self.members) or tuple(f"{self.family}/{f.stem}" for f in self.files)

    def part(self, stem: str) -> str:
        """The name of the program in it that is called so."""
        return next((n for n in self.parts if n.partition("/")[2] == stem), f"{self.family}/{stem}")

    def command(self) -> list[str]:
        """The line as it is typed in a directory where the program is train.py."""
        python = str(BIN / "python")
        many = ["many.py", *map(str, self.files)]
        return {
            "python": [python, *self.arguments, "train.py"],
            "rank": [*RANK, python, *self.arguments, "train.py"],
            "torchrun": [*TORCHRUN, *self.arguments, "train.py"],
            "shell": ["bash", "-c", self.line],
            "many": [*RANK, python, *many],
            "ranks": [*TORCHRUN, *many],
            "each": [python, "each.py"],
        }[self.how]

    def lacks(self) -> str:
        """The first thing it needs and that is not here, or nothing."""
        return next((need for need in self.needs if not _is_here(need)), "")


def _is_here(need: str) -> bool:
    return os.geteuid() == 0 if need == "root" else importlib.util.find_spec(need) is not None


def head_of(path: Path) -> dict[str, str]:
    """The comment lines at the top, by their first word."""
    told = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        found = HEAD.fullmatch(line)
        if found is None:
            raise ValueError(f"{path}: unknown line in its head: {line}")
        told[found[1]] = found[2].strip()
    return told


def load(path: Path) -> Program:
    head = head_of(path)
    how, *arguments = shlex.split(head["how"])
    return Program(
        name=f"{path.parent.name}/{path.stem}",
        how=how,
        arguments=tuple(arguments),
        files=(path,),
        exits=int(head.get("exits", "0")),
        line=head.get("line", ""),
        stdin=head.get("stdin", ""),
        needs=tuple(head.get("needs", "").replace(",", " ").split()),
        env=tuple(shlex.split(head.get("env", ""))),
        probes=head.get("probes", "light"),
        slow="slow" in head,
        alone="alone" in head,
        unordered="unordered" in head or how in ("torchrun", "ranks"),
        apart=tuple(head.get("apart", "").split()),
        differs_today=head.get("differs-today", ""),
        by_design=head.get("by-design", ""),
    )


def each() -> list[Program]:
    """All programs, by family and name."""
    return [load(path) for path in sorted(PROGRAMS.glob("*/*.py"))]


def batched(programs: Sequence[Program], at_most: int = 1000) -> Iterator[Program]:
    """The same ones in few jobs, of `at_most` each: by family those that can share a process, and those that can share a job."""
    alone = [p for p in programs if p.alone or p.lacks() or p.how not in (*BATCHED, *EACH)]
    yield from alone
    rest = [p for p in programs if p not in alone]
    for family, how, slow in sorted({(p.family, _shared(p), p.slow) for p in rest}):
        alike = [p for p in rest if (p.family, _shared(p), p.slow) == (family, how, slow)]
        for first in range(0, len(alike), at_most):
            of_it = tuple(alike[first : first + at_most])
            part = f", from {first + 1}" if first else ""
            yield Program(
                name=f"{family}/({how}{', slow' if slow else ''}{part})",
                how=how,
                files=tuple(p.files[0] for p in of_it),
                members=of_it,
                slow=slow,
                unordered=how == "ranks",
            )


def together(programs: Sequence[Program]) -> Program:
    """All of them in one process, whatever their families."""
    assert len({p.files[0].stem for p in programs}) == len(programs), "each has a folder of its name"
    return Program(
        name="everyday/(many)", how="many", files=tuple(p.files[0] for p in programs), members=tuple(programs)
    )


def _shared(program: Program) -> str:
    return program.how if program.how in BATCHED else "each"
