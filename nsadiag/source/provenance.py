"""Provenance of an expression: the rank, the end of the data, this rank's own data, or nothing that differs between ranks."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cached_property
from typing import Literal

from nsadiag.source.bindings import Binding, Bindings, Counter, Key, is_number
from nsadiag.source.model import Scope, last_name
from nsadiag.source.vocabulary import (
    ASKS_FOR_DATA,
    NUMERIC,
    TRANSPARENT,
    is_config,
    is_end_of_data,
    is_rank,
    is_rank_call,
    is_rank_number,
    is_rank_variable,
    is_uniform,
    is_uniform_call,
    names_first_rank,
)

Provenance = Literal["rank", "input", "data", "uniform"]
DEEPEST = 3  # names and helpers that stand for one another
SINGLES_OUT = ast.Eq | ast.NotEq | ast.Gt | ast.GtE | ast.Is


class Dataflow(Bindings):
    """Bindings, with the names that depend on the rank and those that differ between ranks."""

    @cached_property
    def by_rank(self) -> set[Key]:
        """Names that depend on the rank: the least set that the bindings close."""
        found: set[Key] = set()
        return self._closed(found, lambda b: self._passes(b) and self._rank_in(b.value, b.scope, found))

    def _passes(self, binding: Binding) -> bool:
        """Whether a name takes over what its value depends on: numbers that only differ by rank are data, not branches."""
        value = binding.value
        if isinstance(value, ast.IfExp):
            return not _gives_number(value)
        if isinstance(value, ast.BinOp):
            # `rank % 8` is who one is; `(total - rank) // 4` is how much one has.
            return isinstance(value.op, ast.Mod | ast.FloorDiv) and not isinstance(value.left, ast.BinOp)
        return not isinstance(value, ast.Subscript) or last_name(value.value) == "environ"

    @cached_property
    def at_end(self) -> set[Key]:
        """Names that tell whether data are left."""
        found: set[Key] = set()
        return self._closed(found, lambda b: self._next_in(b.value))

    def _closed(self, found: set[Key], holds: Callable[[Binding], bool]) -> set[Key]:
        grew = True
        while grew:
            grew = False
            for key, bindings in self.bindings.items():
                if key not in found and any(holds(b) for b in bindings):
                    found.add(key)
                    grew = True
        return found

    @cached_property
    def uniform(self) -> set[Key]:
        """Names that are the same on all ranks: the greatest set in which nothing contradicts it."""
        found = set(self.bindings)
        shrank = True
        while shrank:
            shrank = False
            for key, bindings in self.bindings.items():
                if key in found and not self._is_same_everywhere(key, bindings, found):
                    found.discard(key)
                    shrank = True
        return found

    def _is_same_everywhere(self, key: Key, bindings: list[Binding], assumed: set[Key]) -> bool:
        values = [b for b in bindings if not b.by_flow]
        # A flag that a handler or a thread sets, whenever it is called.
        flags = [b for b in values if isinstance(b.value, ast.Constant) and not is_number(b.value)]
        handed = any(b.scope.function in self.handed_over for b in flags)
        if handed and len({b.scope for b in values}) > 1 and len({ast.unparse(b.value) for b in values}) > 1:
            return False
        return all(self._is_uniform(b.value, b.scope, assumed) for b in values) and all(
            self._is_uniform(test, scope, assumed) for test, scope in self.under[key]
        )

    def of(self, expression: ast.expr, scope: Scope) -> Provenance:
        """The strongest source that the expression depends on."""
        if self._rank_in(expression, scope, self.by_rank):
            return "rank"
        if self._asks_for_data(expression, scope):
            return "input"
        return "uniform" if self._is_uniform(expression, scope, self.uniform) else "data"

    def _rank_in(self, node: ast.expr, scope: Scope, known: set[Key]) -> bool:
        if isinstance(node, ast.Name | ast.Attribute):
            if is_rank(last_name(node)):
                return True
            if any(key in known for key in self.keys_of(node, scope)):
                return True
            # A property is a function that is not called.
            return isinstance(node, ast.Attribute) and ("", "func", node.attr) in known
        if isinstance(node, ast.Call):
            return self._rank_in_call(node, scope, known)
        if isinstance(node, ast.Subscript):
            if last_name(node.value) == "environ" and isinstance(node.slice, ast.Constant):
                return is_rank_variable(str(node.slice.value))
            return self._rank_in(node.value, scope, known)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            tests = [test for part in node.generators for test in part.ifs]
            return any(self._rank_in(test, scope, known) for test in tests)
        if isinstance(
            node, ast.Lambda | ast.JoinedStr | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.Constant
        ):
            return False
        return any(
            self._rank_in(c, scope, known) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)
        )

    def _rank_in_call(self, node: ast.Call, scope: Scope, known: set[Key]) -> bool:
        name = last_name(node.func)
        if is_rank_call(name) or ("", "func", name) in known:
            return True
        if name in ("get", "getenv") and node.args and isinstance(node.args[0], ast.Constant):
            return is_rank_variable(str(node.args[0].value))
        if isinstance(node.func, ast.Attribute):
            # `log.isEnabledFor(10)` of a logger whose level was set by the rank: only the object itself answers.
            own = node.func.value
            asks = not node.keywords and all(isinstance(a, ast.Constant) for a in node.args)
            return asks and any(key in known for key in self.keys_of(own, scope))
        plain = isinstance(node.func, ast.Name) and name in TRANSPARENT
        return plain and any(self._rank_in(a, scope, known) for a in node.args)

    def origin(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Scope]:
        """The expression that a value goes back to, from name to name; it ends where the source leaves a choice."""
        seen = {node}
        while isinstance(node, ast.Name) and len(bound := self.values_of(node, scope)) == 1:
            node, scope = bound[0].value, bound[0].scope
            if node in seen:
                break
            seen.add(node)
        return node, scope

    def named_rank(self, test: ast.expr, scope: Scope) -> int | None:
        """The rank that the test singles out, by whichever helper or name; -1 for the last."""
        return self._named_rank(test, scope, 0, {})

    def _named_rank(self, test: ast.expr, scope: Scope, depth: int, seen: dict[ast.expr, int]) -> int | None:
        """`seen`: the depths at which expressions were looked into, which is done once, or once more from nearer."""
        if seen.get(test, DEEPEST + 2) <= depth:
            return None
        seen[test] = depth
        for node in ast.walk(test):
            found = self._compared_rank(node, scope)
            if found is None and isinstance(node, ast.expr):
                found = self._rank_by_name(node, scope, depth, seen)
            if found is not None:
                return found
        return None

    def _compared_rank(self, node: ast.AST, scope: Scope) -> int | None:
        """The rank that a comparison singles out: `rank == 2`, `rank > 0`, `not rank`."""
        if isinstance(node, ast.UnaryOp):
            return 0 if isinstance(node.op, ast.Not) and is_rank_number(last_name(node.operand)) else None
        if (
            not isinstance(node, ast.Compare)
            or len(node.ops) != 1
            or not isinstance(node.ops[0], SINGLES_OUT)
        ):
            return None
        number = _number(node.comparators[0])
        number = _number(node.left) if number is None else number
        return number if number is not None and self.of(node, scope) == "rank" else None

    def _rank_by_name(
        self, node: ast.expr, scope: Scope, depth: int, seen: dict[ast.expr, int]
    ) -> int | None:
        """The rank that a name such as `is_main` singles out; else a helper that is called, or a name that was assigned."""
        name = last_name(node.func if isinstance(node, ast.Call) else node)
        if names_first_rank(name) and self.of(node, scope) == "rank":
            return 0
        if depth > DEEPEST or not name:
            return None
        behind = [*self.returns.get(name, ()), *((b.scope, b.value) for b in self.bound_to(node, scope))]
        numbers = (self._named_rank(value, where, depth + 1, seen) for where, value in behind)
        return next((n for n in numbers if n is not None), None)

    def _next_in(self, node: ast.expr) -> bool:
        return any(
            isinstance(n, ast.Call) and last_name(n.func) in ("next", "__next__") for n in ast.walk(node)
        )

    def _asks_for_data(self, node: ast.expr, scope: Scope) -> bool:
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and last_name(each.func) in ASKS_FOR_DATA:
                return True
            if isinstance(each, ast.Name | ast.Attribute):
                if any(key in self.at_end for key in self.keys_of(each, scope)) and _is_test_of_end(node):
                    return True
                if is_end_of_data(last_name(each)):
                    return True
        return False

    def _is_uniform(self, node: ast.expr, scope: Scope, assumed: set[Key]) -> bool:
        """Whether it is the same on all ranks, if the names in `assumed` are."""
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            keys = list(self.keys_of(node, scope))
            if keys:
                return keys[0] in assumed
            return is_uniform(node.id) or is_config(node.id)
        if isinstance(node, ast.Attribute):
            if is_config(last_name(node.value)):
                return True
            keys = [k for k in self.keys_of(node, scope) if k in self.bindings]
            return keys[0] in assumed if keys else is_uniform(node.attr)
        if isinstance(node, ast.Call):
            if is_uniform_call(last_name(node.func)):
                return True
            plain = isinstance(node.func, ast.Name) and node.func.id in TRANSPARENT
            return plain and all(self._is_uniform(a, scope, assumed) for a in node.args)
        if isinstance(
            node, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.IfExp | ast.Tuple | ast.List
        ):
            return all(
                self._is_uniform(c, scope, assumed)
                for c in ast.iter_child_nodes(node)
                if isinstance(c, ast.expr)
            )
        return bool(isinstance(node, Counter))


def _gives_number(choice: ast.IfExp) -> bool:
    """Whether what it chooses between are two numbers, as far as either side shows."""
    sides = choice.body, choice.orelse
    plain = [s for s in sides if isinstance(s, ast.Constant) and not is_number(s)]
    return not plain and any(_is_numeric(side) for side in sides)


def _is_numeric(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        return True
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod | ast.BitAnd | ast.BitOr | ast.Add):
        return True
    return is_number(node) or (isinstance(node, ast.Call) and last_name(node.func) in NUMERIC)


def _is_test_of_end(node: ast.expr) -> bool:
    """`x is None` and the like: other questions about a batch are about its content."""
    return any(
        isinstance(n, ast.Compare)
        and any(isinstance(c, ast.Constant) and c.value is None for c in n.comparators)
        for n in ast.walk(node)
    )


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | str) and str(node.value).isdigit():
        return int(node.value)
    # `world_size - 1`
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and "world" in ast.unparse(node.left):
        return -1
    return None
