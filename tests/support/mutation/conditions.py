"""Conditions of the analysis under all recordings: those that only ever come out one way, and mutants that no verdict notices.

python -m tests.support.mutation.conditions one-sided            # each with its line, then how many of how many a folder has
python -m tests.support.mutation.conditions survivors            # of the 200 fixed mutants those that change no verdict
python -m tests.support.mutation.conditions draw                 # 200 others, as CSV

A condition is the test of an `if`, a `while`, a conditional expression or a comprehension in a function, and a mutant of
one has it the other way round, always true, or never true. Both figures may only fall (tests/repository/test_conditions.py):
a condition that comes out one way on every recording is of a job that nobody has recorded, or of none.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import csv
import importlib
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing import current_process, get_context
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal, NamedTuple

REPO = Path(__file__).resolve().parents[3]
PACKAGES = ("nsadiag.analysis", "nsadiag.source")
MUTANTS = REPO / "tests" / "repository" / "mutants.csv"
LIMIT_S = 20  # of CPU, for a judgement: a mutant may loop indefinitely
Kind = Literal["negated", "always", "never"]
KINDS: tuple[Kind, ...] = ("negated", "always", "never")
# A third of the mutants each: silent errors, the other rules, and what rules stand on.
STRATA = ("nsadiag/analysis/rules/correctness/", "nsadiag/analysis/rules/", "nsadiag/")


class Condition(NamedTuple):
    """One condition; of the same text in the same function there may be several."""

    file: str
    function: str
    text: str
    line: int
    is_statement: bool  # of an `if` or a `while`
    came_out: str = ""  # "never" or "always" of one that came out one way


class Mutant(NamedTuple):
    """A change to the conditions of one text in one function: without line numbers, so that it outlives edits."""

    file: str
    function: str
    text: str
    kind: Kind


@dataclass
class Watch:
    """What became of each condition; and the one mutant that is alive."""

    conditions: list[Condition]
    came_out: list[int]  # 1: false, 2: true, 3: both
    changed: frozenset[int] = frozenset()
    kind: Kind = "negated"

    def add(self, condition: Condition) -> int:
        self.conditions.append(condition)
        self.came_out.append(0)
        return len(self.conditions) - 1

    def observe(self, number: int, value: object) -> object:
        """The value as the code goes on with it."""
        holds = bool(value)
        self.came_out[number] |= 2 if holds else 1
        if number not in self.changed:
            return value
        return {"negated": not holds, "always": True, "never": False}[self.kind]


WATCH = Watch([], [])
OBSERVER = "__observed_condition__"


class _Instrumented(ast.NodeTransformer):
    """Has each condition of a module asked through the observer, and those that it is made of."""

    def __init__(self, file: str, watch: Watch) -> None:
        self.file, self._watch = file, watch
        self._names: list[str] = []

    def _within(self, node: Any) -> Any:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _within

    def visit_If(self, node: ast.If) -> ast.If:
        return self._tested(node, is_statement=True)

    def visit_While(self, node: ast.While) -> ast.While:
        return self._tested(node, is_statement=True)

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        return self._tested(node, is_statement=False)

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        texts = [ast.unparse(each) for each in node.ifs]
        self.generic_visit(node)
        node.ifs = [self._asked(*pair, is_statement=False) for pair in zip(node.ifs, texts, strict=True)]
        return node

    def _tested(self, node: Any, *, is_statement: bool) -> Any:
        text = ast.unparse(node.test)
        self.generic_visit(node)
        node.test = self._asked(node.test, text, is_statement=is_statement)
        return node

    def _asked(self, test: ast.expr, text: str, *, is_statement: bool) -> ast.expr:
        if not self._names or isinstance(test, ast.Constant):
            return test
        condition = Condition(self.file, ".".join(self._names), text, test.lineno, is_statement)
        asked = ast.Call(
            func=ast.Name(id=OBSERVER, ctx=ast.Load()),
            args=[ast.Constant(self._watch.add(condition)), test],
            keywords=[],
        )
        return ast.fix_missing_locations(ast.copy_location(asked, test))


def _instrumented(path: Path, watch: Watch) -> ast.Module:
    tree: ast.Module = _Instrumented(str(path.relative_to(REPO)), watch).visit(ast.parse(path.read_bytes()))
    return tree


def conditions_in(path: Path) -> list[Condition]:
    """Those of one file."""
    watch = Watch([], [])
    _instrumented(path, watch)
    return watch.conditions


class _Loader(SourceFileLoader):
    """Compiles the instrumented module, and keeps no bytecode of it."""

    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.get_filename(fullname))
        found: CodeType = compile(_instrumented(path, WATCH), str(path), "exec", dont_inherit=True)
        return found


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(PACKAGES):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def instrument() -> None:
    """Imports the analysis with its conditions observed: in a process that has not imported it yet."""
    assert not [name for name in sys.modules if name.startswith(PACKAGES)], "it is imported already"
    setattr(builtins, OBSERVER, WATCH.observe)
    sys.meta_path.insert(0, _Finder())
    for package in PACKAGES:
        for path in sorted((REPO / package.replace(".", "/")).rglob("*.py")):
            parts = path.relative_to(REPO).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))


@contextmanager
def unpacked() -> Iterator[list[Path]]:
    """The run directories of all recordings, and the inputs rebuilt from public threads; not those kept apart."""
    from ..recordings.golden import GOLDEN, unpack
    from ..recordings.posted import POSTED, given, truths

    with tempfile.TemporaryDirectory() as scratch:
        yield [
            *(
                unpack(a, Path(scratch) / a.name.partition(".")[0]).path
                for a in sorted(GOLDEN.rglob("*.tar.*"))
            ),
            *(given(POSTED / name) for name in truths(POSTED)),
        ]


def verdict_of(path: Path) -> str:
    """The whole verdict. Raises TimeoutError where the judgement does not come to an end."""
    from nsadiag.analysis.load import load_cell
    from nsadiag.analysis.verdict import judge
    from nsadiag.errors import UsageError

    def too_long(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        return json.dumps(judge(load_cell(path)).to_json()).replace(str(path), "RUN")
    except UsageError:  # nothing in it is evidence of a failure
        return "refused"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _may_have_children() -> None:
    """Dumps are read in processes of their own, which those of a pool are not allowed to start."""
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def _judged(path: Path) -> tuple[str, list[int]]:
    """The verdict, and how each condition came out."""
    WATCH.came_out = [0] * len(WATCH.conditions)
    return verdict_of(path), WATCH.came_out


def judge_all(paths: Sequence[Path]) -> dict[Path, tuple[str, list[int]]]:
    """By recording, its verdict and how each condition came out in it."""
    with get_context("fork").Pool(os.cpu_count(), _may_have_children) as pool:
        return dict(zip(paths, pool.map(_judged, paths, chunksize=8), strict=True))


def came_out(judged: dict[Path, tuple[str, list[int]]]) -> list[int]:
    """How each condition came out under all recordings together."""
    found = [0] * len(WATCH.conditions)
    for _, outcomes in judged.values():
        found = [one | other for one, other in zip(found, outcomes, strict=True)]
    return found


def one_sided() -> list[Condition]:
    """Tests of `if` and `while` that some recording asks, and that came out one way on all of them."""
    with unpacked() as paths:
        outcomes = came_out(judge_all(paths))
    pairs = zip(WATCH.conditions, outcomes, strict=True)
    ways = {1: "never", 2: "always"}
    return [c._replace(came_out=ways[way]) for c, way in pairs if way in ways and c.is_statement]


# Of the process that forks one child a mutant: each begins with the caches of a program that has judged nothing.
BEFORE: dict[Path, tuple[str, list[int]]] = {}


def _survives(mutant: Mutant) -> bool:
    WATCH.changed, WATCH.kind = frozenset(_numbers(mutant)), mutant.kind
    return all(
        _is_unchanged(path, verdict)
        for path, (verdict, outcomes) in BEFORE.items()
        if any(outcomes[number] for number in WATCH.changed)
    )


def _is_unchanged(path: Path, verdict: str) -> bool:
    try:
        return verdict_of(path) == verdict
    except Exception:
        return False


def _numbers(mutant: Mutant) -> list[int]:
    return [n for n, c in enumerate(WATCH.conditions) if c[:3] == mutant[:3]]


def survivors(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Those that change nothing in the verdict of any recording; such whose condition is gone are not among them."""
    there = [mutant for mutant in mutants if _numbers(mutant)]
    with unpacked() as paths:
        BEFORE.update(judge_all(paths))
        with get_context("fork").Pool(os.cpu_count(), _may_have_children, maxtasksperchild=1) as pool:
            survive = pool.map(_survives, there, chunksize=1)
    return [mutant for mutant, lives in zip(there, survive, strict=True) if lives]


def fixed_mutants() -> list[Mutant]:
    """Those in the file, which stay the same from commit to commit."""
    with MUTANTS.open(newline="") as file:
        return [Mutant(**row) for row in csv.DictReader(file)]


def draw(count: int, seed: int) -> list[Mutant]:
    """So many mutants of conditions that a recording asks, a third of each stratum."""
    with unpacked() as paths:
        outcomes = came_out(judge_all(paths))
    asked = sorted({c[:3] for c, outcome in zip(WATCH.conditions, outcomes, strict=True) if outcome})
    rng, found = random.Random(seed), []
    for number, stratum in enumerate(STRATA):
        mine = [each for each in asked if next(s for s in STRATA if each[0].startswith(s)) == stratum]
        share = count // len(STRATA) + (number < count % len(STRATA))
        found += [Mutant(*each, rng.choice(KINDS)) for each in rng.sample(mine, share)]
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["one-sided", "survivors", "draw"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    instrument()
    if given.what == "draw":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([Mutant._fields, *draw(200, given.seed)])
        return 0
    found = survivors(fixed_mutants()) if given.what == "survivors" else one_sided()
    if given.json:
        print(json.dumps(found))
        return 0
    for each in found:
        where, how = each.file, each[-1]
        if isinstance(each, Condition):
            where = f"{each.file}:{each.line}"
        print(where, each.function, each.text, how, sep="\t")
    print(f"{len(found)} in all", file=sys.stderr)
    for folder, number in sorted(Counter(str(Path(each.file).parent) for each in found).items()):
        print(f"{number:4} {folder}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
