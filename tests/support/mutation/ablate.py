"""Functions of the analysis that no recording needs: each is made to answer nothing, and the recordings that enter it are judged again.

    python -m tests.support.mutation.ablate analysis/relations source     # rooms of nsadiag, or files
    python -m tests.support.mutation.ablate analysis source --most 20     # only those that at most 20 recordings enter
    python -m tests.support.mutation.ablate analysis source --json out.json

Prints one line a function whose answer could be a constant: no verdict on any recording would be another one.
What such a function knows answers a failure that nobody has recorded: record it (CONTRIBUTING.md), or delete it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge

from ..recordings.freeze import ACTED_UPON
from ..recordings.golden import GOLDEN, REPO, unpack

PACKAGE = REPO / "nsadiag"
Key = tuple[str, int]  # file, first line of the code


def answer_nothing(*_: Any, **__: Any) -> None:
    return None


def answer_no(*_: Any, **__: Any) -> bool:
    return False


def answer_yes(*_: Any, **__: Any) -> bool:
    return True


def answer_none_of_them(*_: Any, **__: Any) -> tuple[Any, ...]:
    return ()


def answer_empty_list(*_: Any, **__: Any) -> list[Any]:
    return []


def answer_empty_set(*_: Any, **__: Any) -> set[Any]:
    return set()


def answer_empty_dict(*_: Any, **__: Any) -> dict[Any, Any]:
    return {}


def yield_nothing(*_: Any, **__: Any) -> Iterator[Any]:
    return
    yield


def constants_for(returns: str, *, is_generator: bool) -> list[FunctionType]:
    """Functions that a function with that annotation may be replaced by."""
    if is_generator:
        return [yield_nothing]
    if returns == "bool":
        return [answer_no, answer_yes]
    if returns.endswith("| None"):
        return [answer_nothing]
    kinds = {
        "tuple": answer_none_of_them, "list": answer_empty_list, "dict": answer_empty_dict,
        "set": answer_empty_set, "frozenset": answer_empty_set, "Iterator": answer_none_of_them,
    }  # fmt: skip
    found = kinds.get(returns.partition("[")[0])
    return [found] if found else []


def functions_in(path: Path) -> Iterator[tuple[str, ast.FunctionDef, FunctionType]]:
    """The functions and methods of a module, by their dotted names; those with a closure are left out."""
    module = importlib.import_module(".".join(path.relative_to(REPO).with_suffix("").parts))
    tree = ast.parse(path.read_text())
    for node in tree.body:
        owner = vars(module).get(node.name) if isinstance(node, ast.ClassDef) else module
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(each, ast.FunctionDef) or each.name.startswith("__"):
                continue
            found = vars(owner).get(each.name)
            found = (
                getattr(found, "fget", None)
                or getattr(found, "func", None)
                or getattr(found, "__wrapped__", None)
                or found
            )
            if isinstance(found, FunctionType) and not found.__code__.co_freevars:
                name = f"{node.name}.{each.name}" if owner is not module else each.name
                yield name, each, found


def entered(path: Path) -> tuple[list[Any], set[Key]]:
    """What a person acts upon in the verdict of a run directory, and the code that judging it enters."""
    seen: set[CodeType] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        told = essence(path)
    finally:
        sys.setprofile(None)
    return told, {
        (code.co_filename, code.co_firstlineno) for code in seen if str(PACKAGE) in code.co_filename
    }


def essence(path: Path) -> list[Any]:
    found = judge(load_cell(path)).to_json()
    return [json.dumps(found.get(key)).replace(str(path), "RUN") for key in ACTED_UPON]


def needed_by(task: tuple[FunctionType, FunctionType, list[tuple[Path, list[Any]]]]) -> str | None:
    """The first recording whose verdict is another one with that constant; None where there is none."""
    function, constant, recordings = task
    own = function.__code__
    function.__code__ = constant.__code__
    try:
        for path, told in recordings:
            try:
                found = essence(path)
            except Exception:
                return path.name
            if found != told:
                return path.name
    finally:
        function.__code__ = own
    return None


# Functions cannot be sent from process to process: the pool is forked when these are known.
TASKS: list[tuple[FunctionType, FunctionType, list[tuple[Path, list[Any]]]]] = []


def numbered(number: int) -> str | None:
    return needed_by(TASKS[number])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=10**6, help="recordings that enter a function")
    parser.add_argument("--json", type=Path, help="write what was found there as well")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as scratch:
        paths = [
            unpack(a, Path(scratch) / a.name.partition(".")[0]).path for a in sorted(GOLDEN.glob("*.tar.*"))
        ]
        with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
            judged = dict(zip(paths, pool.map(entered, paths), strict=True))
        files = [
            f
            for room in given.rooms
            for f in ([PACKAGE / room] if room.suffix else sorted((PACKAGE / room).rglob("*.py")))
        ]
        names: list[tuple[str, int, str, int]] = []
        for file in files:
            for name, node, function in functions_in(file):
                key = str(file), function.__code__.co_firstlineno
                recordings = [(path, told) for path, (told, codes) in judged.items() if key in codes]
                is_generator = bool(function.__code__.co_flags & 0x20)
                for constant in constants_for(
                    ast.unparse(node.returns) if node.returns else "", is_generator=is_generator
                ):
                    if len(recordings) <= given.most:
                        TASKS.append((function, constant, recordings))
                        names.append(
                            (
                                f"{file.relative_to(REPO)}:{node.lineno} {name}",
                                (node.end_lineno or 0) - node.lineno + 1,
                                constant.__name__,
                                len(recordings),
                            )
                        )
        print(
            f"{len(TASKS)} functions and constants, {sum(len(t[2]) for t in TASKS)} judgements at most",
            file=sys.stderr,
            flush=True,
        )
        with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
            found = []
            for (name, lines, constant, count), by in zip(
                names, pool.map(numbered, range(len(TASKS))), strict=True
            ):
                if by is None:
                    found.append(
                        {"function": name, "lines": lines, "constant": constant, "entered_by": count}
                    )
                    print(f"{name}: {constant} ({lines} lines, entered by {count})", flush=True)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
