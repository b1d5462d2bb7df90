"""What an expression of the user's depends on: the rank, the end of the data, this rank's own data, or nothing that differs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property
from typing import Literal

from nsadiag.source.bindings import Binding, Bindings, Counter, Key, is_number
from nsadiag.source.model import Scope, last_name

Origin = Literal["rank", "input", "data", "uniform"]

RANK_NAME = re.compile(
    r"^_*(is_|on_|am_)?(\w+_)?(rank|ranks?_?id|rank_?zero|rank_?0|process_index|process_id)$"
    r"|^_*(is_|on_|am_)(\w+_)?(main|master|chief|leader|primary|coordinator|root|lead|zero|writer)(_\w+)?$"
    r"|^_*(main_process|master_process|main_rank|chief|leader|global_zero|rank_zero\w*|is_(first|last)(_stage)?)$"
)
RANK_CALL = re.compile(r"^(get_)?(\w+_)?rank$|^get_(coordinate|process_index)$|^get_local_rank$")
NOT_RANK = re.compile(r"matrix_rank|world(?!_(rank|process|main|master|zero))|num_rank|n_rank")
RANK_VARIABLE = re.compile(r"^(\w*_)?(RANK|PROCID|NODEID|LOCALID)$")
UNIFORM_NAME = re.compile(
    r"^[A-Z][A-Z0-9_]*$|^__(name|debug|file)__$|^(global_|micro_|train_|current_|n_)?(step|steps|epoch|epochs|iteration|iter|it|micro_step)(_idx|_num)?$"
    r"|^(max|num|total|n)_\w+$|^(world_size|world|True|False|None)$|\w+_(every|interval|freq|frequency|steps|epochs|period)$"
)
CONFIG_NAME = re.compile(r"^(args?|cfg|config|conf|opts?|options|hparams|hp|settings|params)$")
UNIFORM_CALL = re.compile(r"^(get_world_size|is_available|is_initialized|device_count)$")
# What a call of these gives depends on its arguments alone.
TRANSPARENT = frozenset(
    {"int", "bool", "str", "float", "min", "max", "abs", "any", "all", "divmod", "round", "sum", "range"}
)
NUMERIC = frozenset({"float", "int", "item", "abs", "round", "sum", "len", "mean", "nan", "inf"})


class Origins(Bindings):
    """Which of the names depend on the rank, and which differ between ranks."""

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

    def _is_same_everywhere(self, key: Key, bindings: list[Binding], known: set[Key]) -> bool:
        values = [b for b in bindings if not b.by_flow]
        # A flag that a handler or a thread sets, whenever it is called.
        flags = [b for b in values if isinstance(b.value, ast.Constant) and not is_number(b.value)]
        handed = any(b.scope[1].rpartition(".")[2] in self.handed_over for b in flags)
        if handed and len({b.scope for b in values}) > 1 and len({ast.unparse(b.value) for b in values}) > 1:
            return False
        return all(self._same(b.value, b.scope, known) for b in values) and all(
            self._same(test, scope, known) for test, scope in self.under[key]
        )

    def of(self, expression: ast.expr, scope: Scope) -> Origin:
        """What the expression depends on, the strongest first."""
        if self._rank_in(expression, scope, self.by_rank):
            return "rank"
        if self._asks_for_data(expression, scope):
            return "input"
        return "uniform" if self._same(expression, scope, self.uniform) else "data"

    def _rank_in(self, node: ast.expr, scope: Scope, known: set[Key]) -> bool:
        if isinstance(node, ast.Name | ast.Attribute):
            name = last_name(node)
            if RANK_NAME.search(name) and not NOT_RANK.search(name):
                return True
            if any(key in known for key in self.keys_of(node, scope)):
                return True
            # A property is a function that is not called.
            return isinstance(node, ast.Attribute) and ("", "func", node.attr) in known
        if isinstance(node, ast.Call):
            return self._rank_in_call(node, scope, known)
        if isinstance(node, ast.Subscript):
            if last_name(node.value) == "environ" and isinstance(node.slice, ast.Constant):
                return bool(RANK_VARIABLE.search(str(node.slice.value)))
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
        if (RANK_CALL.search(name) or RANK_NAME.search(name)) and not NOT_RANK.search(name):
            return True
        if ("", "func", name) in known:
            return True
        if name in ("get", "getenv") and node.args and isinstance(node.args[0], ast.Constant):
            return bool(RANK_VARIABLE.search(str(node.args[0].value)))
        plain = isinstance(node.func, ast.Name) and name in TRANSPARENT
        return plain and any(self._rank_in(a, scope, known) for a in node.args)

    def _next_in(self, node: ast.expr) -> bool:
        return any(
            isinstance(n, ast.Call) and last_name(n.func) in ("next", "__next__") for n in ast.walk(node)
        )

    def _asks_for_data(self, node: ast.expr, scope: Scope) -> bool:
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and last_name(each.func) in (
                "next",
                "__next__",
                "has_next",
                "exhausted",
            ):
                return True
            if isinstance(each, ast.Name | ast.Attribute):
                if any(key in self.at_end for key in self.keys_of(each, scope)) and _is_test_of_end(node):
                    return True
                if re.search(r"exhausted|out_of_data|end_of_(data|epoch)|has_more", last_name(each)):
                    return True
        return False

    def _same(self, node: ast.expr, scope: Scope, known: set[Key]) -> bool:
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            keys = list(self.keys_of(node, scope))
            if keys:
                return keys[0] in known
            return bool(UNIFORM_NAME.search(node.id) or CONFIG_NAME.search(node.id))
        if isinstance(node, ast.Attribute):
            if CONFIG_NAME.search(last_name(node.value)):
                return True
            keys = [k for k in self.keys_of(node, scope) if k in self.bindings]
            return keys[0] in known if keys else bool(UNIFORM_NAME.search(node.attr))
        if isinstance(node, ast.Call):
            if UNIFORM_CALL.search(last_name(node.func)):
                return True
            plain = isinstance(node.func, ast.Name) and node.func.id in TRANSPARENT
            return plain and all(self._same(a, scope, known) for a in node.args)
        if isinstance(
            node, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.IfExp | ast.Tuple | ast.List
        ):
            return all(
                self._same(c, scope, known) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)
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
