"""Library decorators that let one rank alone into a function, and calls that are given the function."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from nsadiag.source.model import Function, Scope, SourceFile, last_name
from nsadiag.source.provenance import Dataflow
from nsadiag.source.vocabulary import admitted_rank


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

    def of(self, file: str, function: Function) -> list[Gate]:
        """Those that the function is behind for whoever calls it."""
        decorators = ((d, d.lineno) for d in function.decorator_list)
        wrapped = [] if self._called_plainly(function) else self._given.get(function.name, [])
        around = (
            (call.func, call.lineno if where.file == file else function.lineno) for where, call in wrapped
        )
        return [
            Gate(name=name, rank=rank, line=line)
            for gate, line in (*decorators, *around)
            if (name := self._name_of(gate)) and (rank := admitted_rank(name)) is not None
        ]

    def _name_of(self, gate: ast.expr) -> str:
        """Its last name; empty of a function of the user's own."""
        name = last_name(gate.func if isinstance(gate, ast.Call) else gate)
        return "" if name in self._dataflow.functions else name

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
