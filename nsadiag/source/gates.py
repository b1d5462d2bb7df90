"""Library decorators that let one rank alone into a function, and calls that are given the function."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from nsadiag.source.model import Function, Scope, SourceFile, last_name
from nsadiag.source.provenance import Dataflow
from nsadiag.source.vocabulary import admits_given_rank, admitted_rank

DEEPEST = 3


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One, with the line at which the function is put behind it."""

    name: str
    rank: int  # -1 for the last
    line: int


class Gates:
    """Those of the user's files."""

    def __init__(self, files: Mapping[str, SourceFile], dataflow: Dataflow) -> None:
        self._files, self._dataflow = files, dataflow

    def of(self, file: str, function: Function, scope: Scope) -> list[Gate]:
        """Those that the function is behind for whoever calls it."""
        decorators = ((d, d.lineno) for d in function.decorator_list)
        wrapped = [] if self._called_plainly(function) else self._given.get(function.name, [])
        around = (
            (call.func, call.lineno if where.file == file else function.lineno) for where, call in wrapped
        )
        found = []
        for gate, line in (*decorators, *around):
            named = self._named(gate, scope, 0)
            if named is not None:
                found.append(Gate(name=named[0], rank=named[1], line=line))
        return found

    def _called_plainly(self, function: Function) -> bool:
        """Whether anybody calls it by its own name, which then is not, or not only, what came out of a gate."""
        rebound = any(key[-1] == function.name for key in self._dataflow.bindings)
        return bool(self._dataflow.calls.get(function.name)) and not rebound

    @cached_property
    def _given(self) -> dict[str, list[tuple[Scope, ast.Call]]]:
        """By the name of what is their first argument: all calls that may be of a gate."""
        found: dict[str, list[tuple[Scope, ast.Call]]] = {}
        for path, file in self._files.items():
            for call in file.calls:
                if call.args and (name := last_name(call.args[0])):
                    found.setdefault(name, []).append((Scope(path, ""), call))
        return found

    def _named(self, node: ast.expr, scope: Scope, depth: int) -> tuple[str, int] | None:
        """Name and rank of the gate that the expression is, or comes to; None where it is none."""
        call = node if isinstance(node, ast.Call) else None
        name = last_name(call.func if call else node)
        if name in self._dataflow.functions:
            return None
        if (rank := admitted_rank(name)) is not None:
            return name, rank
        if call and name == "partial" and call.args:
            return self._indexed(last_name(call.args[0]), call) or self._named(call.args[0], scope, depth)
        if call:
            return self._indexed(name, call)
        return self._behind(node, scope, depth)

    def _indexed(self, name: str, call: ast.Call) -> tuple[str, int] | None:
        if not admits_given_rank(name):
            return None
        numbers = [
            k.value.value
            for k in call.keywords
            if k.arg and k.arg.endswith("process_index") and isinstance(k.value, ast.Constant)
        ]
        return (name, numbers[0]) if numbers and type(numbers[0]) is int else None

    def _behind(self, node: ast.expr, scope: Scope, depth: int) -> tuple[str, int] | None:
        """The gate behind a name: `main_only = accelerator.on_main_process`."""
        if depth >= DEEPEST:
            return None
        values = self._dataflow.bound_to(node, scope)
        if len(values) != 1 or values[0].by_flow:
            return None
        return self._named(values[0].value, values[0].scope, depth + 1)
