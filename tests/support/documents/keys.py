"""The keys of documents as their dataclasses have them: docstrings say what a row is, comments beside a field what its key holds."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator

from nsadiag.evidence import records
from nsadiag.evidence.documents import captures, exceptions, kernel, process, watch
from nsadiag.evidence.rehearsal import repair

# By document, the type of the whole, or of one row of it.
DOCUMENTS: dict[str, type] = {
    "verdict.json": records.Verdict,
    "watch.json": watch.Watch,
    "ends.json": watch.End,
    "fix.json": repair.Repair,
    "meta.json": process.Meta,
    "proc.json": kernel.KernelProcess,
    "answers.json": captures.Answers,
    "gaps.json": captures.Gap,
    "tasks.json": captures.Task,
    "oom.json": kernel.OomReport,
    "exception.json": exceptions.Raised,
    "leaving.json": exceptions.Leaving,
    "signals.jsonl": exceptions.SentSignal,
}


def lists_of_keys() -> Iterator[str]:
    """A table a document: a row each key, and below it the types that occur within."""
    said: set[type] = set()
    for name, whole in DOCUMENTS.items():
        yield f"### {name}\n\n{_sentence(whole)}\n\n"
        yield from _table(whole)
        for key, part in _parts(whole, said):
            yield f"In `{key}`: {_sentence(part)}\n\n"
            yield from _table(part)


def _parts(whole: type, said: set[type]) -> Iterator[tuple[str, type]]:
    """Dataclasses within, each where it first occurs, with its key."""
    said.add(whole)
    for key, hint in typing.get_type_hints(whole).items():
        for each in _types_in(hint):
            if dataclasses.is_dataclass(each) and each not in said:
                yield key, each
                yield from _parts(each, said)


def _types_in(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for argument in typing.get_args(hint):
        yield from _types_in(argument)


def _table(of: type) -> Iterator[str]:
    """Keys with their meaning; those whose names say it all in the last row."""
    meanings = meanings_in(of)
    yield "| key | |\n|---|---|\n"
    yield from (f"| `{key}` | {_cell(says)} |\n" for key, says in meanings.items() if says)
    if rest := [f"`{key}`" for key, says in meanings.items() if not says]:
        yield f"| {', '.join(rest)} | |\n"
    yield "\n"


def meanings_in(of: type) -> dict[str, str]:
    """By key, the comment behind its field or in the lines above it; empty where there is none."""
    found: dict[str, str] = {}
    for base in reversed(of.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _own_meanings(base)
    keys = {f.name: f.metadata.get("key", f.name) for f in dataclasses.fields(of)}  # type: ignore[arg-type]
    return {key: found.get(name, "") for name, key in keys.items()}


def _own_meanings(of: type) -> dict[str, str]:
    lines = inspect.getsource(of).splitlines()
    (parsed,) = ast.parse("\n".join(lines)).body
    assert isinstance(parsed, ast.ClassDef)
    found = {}
    for node in parsed.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            behind = lines[last].encode()[node.end_col_offset :].decode().partition("# ")[2]
            found[node.target.id] = behind or _above(lines, first)
    return found


def _above(lines: list[str], number: int) -> str:
    """The comment that ends before that line."""
    first = number
    while lines[first - 1].strip().startswith("# "):
        first -= 1
    return " ".join(line.strip().removeprefix("# ") for line in lines[first:number])


def _sentence(of: type) -> str:
    return (of.__doc__ or "").strip().partition("\n")[0]


def _cell(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")
