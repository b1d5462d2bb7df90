"""What a condition on the rank comes to on one rank, where the source says enough to compute it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nsadiag.source.control import Guard, Program
from nsadiag.source.model import Scope, last_name

# Numbers in a smaller group (local_rank, tp_rank) are others than the rank's.
RANK = re.compile(r"^_?(get_)?(global_)?rank$")
WORLD = re.compile(r"^_?(get_)?(world|world_?size)$")
COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
DEEPEST = 4


def _asked(guard: Guard) -> ast.expr | None:
    """What it asks, if it is a question: a handler's `except` is none."""
    return ast.parse(guard.test, mode="eval").body if guard.kind in ("if", "while", "choice") else None


@dataclass(frozen=True, kw_only=True)
class OnRank:
    """One rank of the job, to ask conditions of."""

    program: Program
    rank: int
    world_size: int

    def holds(self, guard: Guard) -> bool | None:
        """Whether the condition holds on this rank, whatever its data are; None where that is open."""
        test = _asked(guard)
        return self._truth(test, self._scope(guard), 0) if test is not None else None

    def never_in(self, guard: Guard) -> bool:
        """Whether the rank never comes to that branch."""
        if guard.kind != "if" or guard.branch not in ("body", "orelse"):
            return False
        return self.holds(guard) is (guard.branch == "orelse")

    def decides(self, guard: Guard) -> bool:
        """Whether it may hold in one round and not in another: what hangs on the rank alone is the same in all."""
        if self.holds(guard) is not None:
            return False
        scope, test = self._scope(guard), _asked(guard)
        parts = [n for n in ast.walk(test) if isinstance(n, ast.BoolOp)] if test is not None else []
        mixed = any(
            self.program.origins.of(v, scope) in ("data", "input") for part in parts for v in part.values
        )
        return guard.origin != "rank" or mixed

    def _scope(self, guard: Guard) -> Scope:
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
        """Of a name that is given a value in one place only."""
        if depth >= DEEPEST or not isinstance(name, ast.Name | ast.Attribute):
            return None
        origins = self.program.origins
        given: list[Any] = [b for key in origins.keys_of(name, scope) for b in origins.bindings[key]]
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
        if RANK.match(name) and self.program.origins.of(node, scope) == "rank":
            return self.rank
        return self.world_size if WORLD.match(name) else None
