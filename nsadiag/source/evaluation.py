"""Conditions evaluated for one rank, where the source says enough to compute them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass

from nsadiag.source.control import Condition, Program
from nsadiag.source.model import Scope, last_name
from nsadiag.source.vocabulary import is_global_rank, is_world_size

COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
DEEPEST = 4


def _asked(guard: Condition) -> ast.expr | None:
    """The expression that it tests, if it tests one: a handler's `except` does not."""
    return ast.parse(guard.test, mode="eval").body if guard.kind in ("if", "while", "choice") else None


@dataclass(frozen=True, kw_only=True)
class OnRank:
    """One rank of the job, to ask conditions of."""

    program: Program
    rank: int
    world_size: int

    def holds(self, guard: Condition) -> bool | None:
        """The condition's value on this rank, whatever its data are; None where that is open."""
        test = _asked(guard)
        return self._truth(test, self._scope(guard), 0) if test is not None else None

    def never_in(self, guard: Condition) -> bool:
        """Whether the rank never comes to that branch."""
        if guard.kind != "if" or guard.branch not in ("body", "orelse"):
            return False
        return self.holds(guard) is (guard.branch == "orelse")

    def decides(self, guard: Condition) -> bool:
        """Whether it may hold in one round and not in another: what hangs on the rank alone is the same in all."""
        if self.holds(guard) is not None:
            return False
        scope, test = self._scope(guard), _asked(guard)
        parts = [n for n in ast.walk(test) if isinstance(n, ast.BoolOp)] if test is not None else []
        mixed = any(
            self.program.dataflow.of(v, scope) in ("data", "input") for part in parts for v in part.values
        )
        return guard.provenance != "rank" or mixed

    def _scope(self, guard: Condition) -> Scope:
        return self.program.scope_of(guard.file, guard.line)

    def _truth(self, test: ast.expr, scope: Scope, depth: int) -> bool | None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand, scope, depth)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            settles = isinstance(test.op, ast.Or)
            known = [self._truth(value, scope, depth) for value in test.values]
            return settles if settles in known else None if None in known else not settles
        if isinstance(test, ast.Compare):
            return self._compared(test, scope)
        return self._behind(test, scope, depth)

    def _compared(self, test: ast.Compare, scope: Scope) -> bool | None:
        holds = COMPARED.get(type(test.ops[0])) if len(test.ops) == 1 else None
        left, right = self._number(test.left, scope), self._number(test.comparators[0], scope)
        return None if holds is None or left is None or right is None else holds(left, right)

    def _behind(self, name: ast.expr, scope: Scope, depth: int) -> bool | None:
        """The value of a name that gets one in one place only."""
        if depth >= DEEPEST or not isinstance(name, ast.Name | ast.Attribute):
            return None
        given = self.program.dataflow.bound_to(name, scope)
        if len(given) != 1 or given[0].by_flow:
            return None
        return self._truth(given[0].value, given[0].scope, depth + 1)

    def _number(self, node: ast.expr, scope: Scope) -> int | None:
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            left, right = self._number(node.left, scope), self._number(node.right, scope)
            return None if left is None or right is None else left - right
        name = last_name(node.func if isinstance(node, ast.Call) else node)
        # Called with a group, it is the number in that.
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            return None
        if is_global_rank(name) and self.program.dataflow.of(node, scope) == "rank":
            return self.rank
        return self.world_size if is_world_size(name) else None
