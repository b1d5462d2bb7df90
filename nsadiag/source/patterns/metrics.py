"""Metrics that the user's code logs to a framework by name, and callbacks of the framework that watch one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import Scope, given_to, last_name
from nsadiag.source.vocabulary import LOGS_MEAN, LOGS_METRIC, LOGS_ON_RANK_0, is_logger


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One call that logs a metric."""

    at: Place
    is_certain: bool  # the name is just that, and not one that may be
    condition: Condition | None  # on the rank, around the call
    rank: int | None  # on which alone; -1 for the last


def watched_by(program: Program, kind: str) -> list[tuple[str, Place]]:
    """Texts that the user gives where an object of that class, or of one derived from it, is made."""
    return [
        (text, scope.place(call.lineno))
        for each in sorted(_with_derived(program, kind))
        for scope, call in program.dataflow.calls.get(each, ())
        for given in given_to(call)
        if (text := _text(program, given, scope)) is not None
    ]


def logged(program: Program, name: str) -> Iterator[Logged]:
    """All calls by which a framework is given a metric of that name, or may be."""
    for scope, call in _calls_that_log(program):
        certain = [_is_it(program, node, scope, name) for node in _names_given(call)]
        if any(fits is not False for fits in certain):
            yield _logged(program, scope, call, is_certain=True in certain)


def averaged(program: Program) -> Iterator[Logged]:
    """All calls by which a framework is given a metric whose mean over all ranks it is to take."""
    for scope, call in _calls_that_log(program):
        if _is_set(call, LOGS_MEAN):
            yield _logged(program, scope, call, is_certain=True)


def _calls_that_log(program: Program) -> Iterator[tuple[Scope, ast.Call]]:
    for scope, call in (c for function in LOGS_METRIC for c in program.dataflow.calls_of(function)):
        if isinstance(call.func, ast.Attribute) and not is_logger(last_name(call.func.value)):
            yield scope, call


def _logged(program: Program, scope: Scope, call: ast.Call, *, is_certain: bool) -> Logged:
    condition = program.on_rank(scope, call.lineno)
    rank = 0 if _is_set(call, LOGS_ON_RANK_0) else condition.rank if condition else None
    return Logged(at=scope.place(call.lineno), is_certain=is_certain, condition=condition, rank=rank)


def _is_set(call: ast.Call, argument: str) -> bool:
    """Whether the call is given True for that argument."""
    return any(k.arg == argument and isinstance(k.value, ast.Constant) and k.value.value is True for k in call.keywords)  # fmt: skip


def _with_derived(program: Program, kind: str) -> set[str]:
    kinds, classes = {kind}, program.dataflow.classes
    for _ in range(len(classes)):
        kinds |= {name for name, (_, c) in classes.items() if {last_name(b) for b in c.bases} & kinds}
    return kinds


def _text(program: Program, node: ast.expr | None, scope: Scope) -> str | None:
    """A string, or a name that only ever stands for it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    values = [b.value for b in program.dataflow.bound_to(node, scope)] if node else []
    texts = {v.value if isinstance(v, ast.Constant) else None for v in values}
    found = texts.pop() if len(texts) == 1 else None
    return found if isinstance(found, str) else None


def _names_given(call: ast.Call) -> list[ast.expr | None]:
    """Expressions that name metrics in the call; None of a mapping that takes in another one."""
    first = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("name", "dictionary"))][:1]
    return [key for node in first for key in (node.keys if isinstance(node, ast.Dict) else [node])]


def _is_it(program: Program, node: ast.expr | None, scope: Scope, name: str) -> bool | None:
    """True where the expression is the name, False where it is not, None where it may be."""
    text = _text(program, node, scope)
    if text is not None:
        return text == name
    if isinstance(node, ast.JoinedStr):
        parts = (re.escape(str(v.value)) if isinstance(v, ast.Constant) else ".*" for v in node.values)
        return None if re.fullmatch("".join(parts), name) else False
    return None
