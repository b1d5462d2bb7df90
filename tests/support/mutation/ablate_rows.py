"""Rows of tables that no recording needs: each is taken out, and the recordings in which it was met are judged again.

    python -m tests.support.mutation.ablate_rows source evidence/blocking.py     # rooms of nsadiag, or files
    python -m tests.support.mutation.ablate_rows source analysis --json out.json

A table is a module's tuple, set or dict of names, its pattern with alternatives, or its rows of `Blocking`. Prints one line a
row without which no verdict on any recording would be another one, and how many recordings met it. Such a row is a fact
about a library that a test of its own states, or it goes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

from nsadiag.evidence import blocking
from nsadiag.evidence.blocking import Blocking

from ..recordings.golden import GOLDEN, REPO, unpack
from .ablate import PACKAGE, essence

Met = dict[str, set[Any]]  # by table, what was looked up in it and found
PATTERNS_OF_A_ROW = ("frames", "functions", "native")


@dataclass(frozen=True, kw_only=True)
class Table:
    """One module-level table."""

    module: str
    name: str
    value: Any

    @property
    def label(self) -> str:
        return f"{self.module.replace('.', '/')}.py {self.name}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table, and the table without it."""

    table: Table
    text: str
    without: Any

    def is_met_by(self, entry: Any) -> bool:
        """Whether a look-up that found something would find something else without it."""
        if isinstance(self.table.value, re.Pattern):
            return bool(found(self.without, *entry) != found(self.table.value, *entry))
        return bool(entry == self.text)


def tables_in(modules: list[ModuleType]) -> Iterator[Table]:
    """The tables of these modules, each where it is defined."""
    seen: set[int] = set()
    for module in modules:
        text = Path(str(module.__file__)).read_text()
        for name, value in vars(module).items():
            is_own = re.search(rf"^{name}\b[^=\n]*=", text, re.MULTILINE)
            if is_own and id(value) not in seen and _is_table(value):
                seen.add(id(value))
                yield Table(module=module.__name__, name=name, value=value)


def _is_table(value: Any) -> bool:
    if isinstance(value, re.Pattern):
        return isinstance(value.pattern, str) and "|" in value.pattern
    if isinstance(value, Blocking):
        return True
    if not isinstance(value, tuple | list | frozenset | set | dict) or len(value) < 2:
        return False
    return all(isinstance(each, str | Blocking) for each in value)


def rows_of(table: Table) -> Iterator[Row]:
    """The table without each of its rows, and without each alternative of a pattern in one."""
    value = table.value
    if isinstance(value, re.Pattern):
        for text, rest in without_alternatives(value.pattern):
            yield Row(table=table, text=text, without=re.compile(rest, value.flags))
    elif isinstance(value, Blocking):
        for text, rest in narrower(value):
            yield Row(table=table, text=text, without=rest)
    elif isinstance(value, dict):
        for key in value:
            yield Row(table=table, text=key, without={k: v for k, v in value.items() if k != key})
    elif isinstance(value, tuple | list) and isinstance(value[0], Blocking):
        for number, row in enumerate(value):
            before, after = value[:number], value[number + 1 :]
            yield Row(table=table, text=shown(row), without=type(value)((*before, *after)))
            for text, rest in narrower(row):
                label = f"{shown(row)}: {text}"
                yield Row(table=table, text=label, without=type(value)((*before, rest, *after)))
    else:
        for each in value:
            yield Row(table=table, text=each, without=type(value)(v for v in value if v != each))


def shown(row: Blocking) -> str:
    set_fields = {f.name: getattr(row, f.name) for f in dataclasses.fields(row)}
    return ", ".join(f"{k}={v}" for k, v in set_fields.items() if v and k != "waker")


def narrower(row: Blocking) -> Iterator[tuple[str, Blocking]]:
    for field in PATTERNS_OF_A_ROW:
        for text, rest in without_alternatives(getattr(row, field)):
            yield text, dataclasses.replace(row, **{field: rest})  # type: ignore[arg-type]


def without_alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """Each alternative of a pattern, at whichever depth, and the pattern without it."""
    starts: list[list[int]] = [[0]]  # by open group, where its alternatives begin
    spans: list[tuple[int, int]] = []
    position, in_class = 0, False
    while position <= len(pattern):
        char = pattern[position : position + 1]
        if char == "\\":
            position += 2
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "(":
            inner = re.compile(r"\(\?(?:[:=!]|<[=!]|P<\w+>)").match(pattern, position)
            starts.append([inner.end() if inner else position + 1])
        elif char == "|":
            starts[-1].append(position + 1)
        elif char in (")", ""):
            begins = starts.pop()
            ends = [*(b - 1 for b in begins[1:]), position]
            if len(begins) > 1:
                spans += zip(begins, ends, strict=True)
        position += 1
    for begin, end in sorted(spans):
        before, after = pattern[:begin], pattern[end:]
        rest = before[:-1] + after if before.endswith("|") else before + after.removeprefix("|")
        yield pattern[begin:end], rest


def found(pattern: re.Pattern[str], method: str, *arguments: Any) -> Any:
    """What a look-up in a pattern gives, as a plain value."""
    answer = getattr(pattern, method)(*arguments)
    if isinstance(answer, re.Match):
        return answer.span(), answer.groups()
    return [each.span() for each in answer] if method == "finditer" else answer


class Listening:
    """A pattern whose hits are noted."""

    def __init__(self, pattern: re.Pattern[str], hits: set[Any]) -> None:
        self._pattern, self._hits = pattern, hits

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._pattern, method)
        if not callable(real):
            return real

        def call(*arguments: Any) -> Any:
            answer = real(*arguments)
            if answer is not None:
                self._hits.add((method, *arguments))
            return answer

        return call


def listening(kind: type[Any]) -> type[Any]:
    """A kind of container that notes what is looked for in it and found."""

    class Container(kind):  # type: ignore[misc]
        hits: set[Any]

        def __contains__(self, item: object) -> bool:
            inside = super().__contains__(item)
            if inside:
                self.hits.add(item)
            return inside

        def __iter__(self) -> Iterator[Any]:
            self.hits.add(ALL)
            return super().__iter__()

        def __getitem__(self, key: Any) -> Any:
            self.hits.add(key)
            return super().__getitem__(key)

        def get(self, key: Any, default: Any = None) -> Any:
            self.hits.add(key)
            return super().get(key, default)

    if kind in (set, frozenset):
        for name in ("__and__", "__rand__", "__sub__", "__rsub__", "__le__", "__ge__", "isdisjoint"):

            def operate(self: Any, other: Any, name: str = name) -> Any:
                self.hits.update(kind(self) & kind(other))
                return getattr(kind(self), name)(other)

            setattr(Container, name, operate)
    return Container


ALL = "*"  # the table was walked through
KINDS = {kind: listening(kind) for kind in (tuple, list, set, frozenset, dict)}
ASKED = ("by_frames", "by_native", "by_kernel", "by_wchan", "wakers", "is_library", "is_lock", "is_loader", "awaits_batch", "is_server")  # fmt: skip
BLOCKING = "blocking"


@functools.cache
def globals_of() -> tuple[dict[int, list[tuple[ModuleType, str]]], list[Any]]:
    """By the identity of a value, the modules of ours that have it, and its name there; and all cached functions."""
    modules = [module for name, module in sys.modules.items() if name.startswith("nsadiag.")]
    places: dict[int, list[tuple[ModuleType, str]]] = {}
    for module in modules:
        for name, value in vars(module).items():
            places.setdefault(id(value), []).append((module, name))
    cached = [v for module in modules for v in vars(module).values() if hasattr(v, "cache_clear")]
    return places, cached


@contextlib.contextmanager
def replaced(pairs: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Other values in the place of these, in each module that has them."""
    places, cached = globals_of()
    before = [(module, name, old, new) for old, new in pairs for module, name in places[id(old)]]
    for module, name, _, new in before:
        setattr(module, name, new)
    for function in cached:
        function.cache_clear()
    try:
        yield
    finally:
        for module, name, old, _ in before:
            setattr(module, name, old)
        for function in cached:
            function.cache_clear()


def met_in(path: Path) -> tuple[list[Any], Met]:
    """What a person acts upon in the verdict of a run directory, and what is found in the tables on the way to it."""
    met: Met = {table.label: set() for table in TABLES}
    asked: set[Any] = set()
    pairs: list[tuple[Any, Any]] = [
        (getattr(blocking, name), noted(name, getattr(blocking, name), asked)) for name in ASKED
    ]
    for table in TABLES:
        if isinstance(table.value, re.Pattern):
            pairs.append((table.value, Listening(table.value, met[table.label])))
        elif type(table.value) in KINDS and not _of_blocking(table):
            container = KINDS[type(table.value)](table.value)
            container.hits = met[table.label]
            pairs.append((table.value, container))
    with replaced(pairs):
        told = essence(path)
    return told, met | {BLOCKING: asked}


def noted(name: str, function: Callable[..., Any], asked: set[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def note(*arguments: Any) -> Any:
        arguments = tuple(tuple(a) if isinstance(a, list | Iterator) else a for a in arguments)
        asked.add((name, *arguments))
        return function(*arguments)

    return note


def _of_blocking(table: Table) -> bool:
    value = table.value
    return isinstance(value, Blocking) or (
        isinstance(value, tuple) and all(isinstance(r, Blocking) for r in value)
    )


def recordings_of(row: Row, judged: dict[Path, tuple[list[Any], Met]]) -> list[tuple[Path, list[Any]]]:
    """The recordings in which it was met."""
    if _of_blocking(row.table):
        otherwise = answered(row)
        return [(path, told) for path, (told, met) in judged.items() if met[BLOCKING] & otherwise]
    label = row.table.label
    every = {entry for _, met in judged.values() for entry in met[label]}
    otherwise = {entry for entry in every if entry == ALL or row.is_met_by(entry)}
    return [(path, told) for path, (told, met) in judged.items() if met[label] & otherwise]


EVERY_QUESTION: dict[Any, Any] = {}  # with its answer


def said(answer: Any) -> Any:
    """What a row says, whichever it is."""
    return (answer.syscall, answer.state, answer.waker) if isinstance(answer, Blocking) else answer


def answered(row: Row) -> set[Any]:
    """The questions to the table of blocking calls that are answered otherwise without the row."""
    with replaced([(row.table.value, row.without)]):
        return {
            question
            for question, answer in EVERY_QUESTION.items()
            if said(getattr(blocking, question[0])(*question[1:])) != answer
        }


def needed_by(number: int) -> str | None:
    """The first recording whose verdict is another one without that row; None where there is none."""
    row, recordings = TASKS[number]
    with replaced([(row.table.value, row.without)]):
        for path, told in recordings:
            try:
                if essence(path) != told:
                    return path.name
            except Exception:
                return path.name
    return None


# Tables cannot be sent from process to process: the pool is forked when these are known.
TABLES: list[Table] = []
TASKS: list[tuple[Row, list[tuple[Path, list[Any]]]]] = []


def modules_of(rooms: list[Path]) -> list[ModuleType]:
    files = (
        f
        for room in rooms
        for f in ([PACKAGE / room] if room.suffix else sorted((PACKAGE / room).rglob("*.py")))
    )
    return [importlib.import_module(".".join(f.relative_to(REPO).with_suffix("").parts)) for f in files]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write what was found there as well")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    TABLES.extend(tables_in(modules_of(given.rooms)))
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as scratch:
        paths = [
            unpack(a, Path(scratch) / a.name.partition(".")[0]).path for a in sorted(GOLDEN.glob("*.tar.*"))
        ]
        with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
            judged = dict(zip(paths, pool.map(met_in, paths), strict=True))
        print("judged", file=sys.stderr, flush=True)
        for question in {q for _, met in judged.values() for q in met[BLOCKING]}:
            EVERY_QUESTION[question] = said(getattr(blocking, question[0])(*question[1:]))
        for table in TABLES:
            for row in rows_of(table):
                TASKS.append((row, recordings_of(row, judged)))
        count = sum(len(recordings) for _, recordings in TASKS)
        print(f"{len(TASKS)} rows, {count} judgements at most", file=sys.stderr, flush=True)
        unneeded: list[dict[str, Any]] = []
        with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
            for (row, recordings), by in zip(TASKS, pool.map(needed_by, range(len(TASKS))), strict=True):
                if by is None:
                    unneeded.append({"table": row.table.label, "row": row.text, "met_by": len(recordings)})
                    print(f"{row.table.label}: {row.text} (met by {len(recordings)})", flush=True)
        if given.json:
            given.json.write_text(json.dumps(unneeded, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
