"""What an expression of the user's depends on: the rank, the end of the data, this rank's own data, or nothing that differs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from nsadiag.analysis.flow.levels import QUESTIONS, level_given

Origin = Literal["rank", "input", "data", "uniform"]
Scope = tuple[str, str]  # file, dotted path of the function, "" at the top
Key = tuple[str, str, str]

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
GROWS = frozenset(
    {"append", "extend", "add", "insert", "register", "update", "add_callback", "register_callback"}
)


@dataclass(frozen=True)
class Binding:
    """A name gets what an expression gives; `by_flow`: the expression only decides whether."""

    key: Key
    value: ast.expr
    scope: Scope
    by_flow: bool = False


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`; "" for what has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _first_name(node: ast.expr) -> str:
    """`a` of `a.b.c`; "" where it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


class Origins:
    """The bindings of all the user's files, and which of the names depend on the rank or differ between ranks."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.bindings: dict[Key, list[Binding]] = defaultdict(list)
        self.functions: dict[str, list[tuple[Scope, ast.FunctionDef | ast.AsyncFunctionDef]]] = defaultdict(
            list
        )
        self.calls: dict[str, list[tuple[Scope, ast.Call]]] = defaultdict(list)
        # Conditions under which a name gets another value: it is the same on all ranks only if these are.
        self.under: dict[Key, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        # Functions that somebody else is given to call: handlers, callbacks.
        self.handed_over: set[str] = set()
        self.classes: dict[str, tuple[Scope, ast.ClassDef]] = {}
        # Names that a file has from a library, which is whatever is in none of the user's files.
        self.of_library: set[tuple[str, str]] = set()
        self.own_modules = {part for file in trees for part in (*Path(file).parts, Path(file).stem)}
        for file, tree in trees.items():
            _Collector(self, file).visit(tree)
        self._bind_parameters()

    def bind(self, key: Key, value: ast.expr, scope: Scope, *, by_flow: bool = False) -> None:
        self.bindings[key].append(Binding(key, value, scope, by_flow))

    def calls_of(self, name: str) -> list[tuple[Scope, ast.Call]]:
        """Calls that may be of the user's function of that name: `torch.save()` is none of a `save` of one's own."""
        return [
            (scope, call)
            for scope, call in self.calls.get(name, ())
            if (scope[0], _first_name(call.func)) not in self.of_library
        ]

    def _bind_parameters(self) -> None:
        for name in self.calls:
            calls = self.calls_of(name)
            targets = list(self.functions.get(name, ()))
            if name in self.classes:
                scope, _ = self.classes[name]
                inside = f"{scope[1]}.{name}".strip(".")
                targets += [
                    f for f in self.functions.get("__init__", ()) if f[0] == (scope[0], f"{inside}.__init__")
                ]
                # A dataclass has no __init__ to be seen: its fields are the attributes.
                for caller, call in calls if not targets else ():
                    for keyword in call.keywords:
                        if keyword.arg:
                            self.bind(("", "attr", keyword.arg), keyword.value, caller)
            for scope, function in targets:
                for caller, call in calls:
                    self._bind_call(scope, function, caller, call)

    def _bind_call(
        self, scope: Scope, function: ast.FunctionDef | ast.AsyncFunctionDef, caller: Scope, call: ast.Call
    ) -> None:
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if names and names[0] in ("self", "cls"):
            names = names[1:]
        for name, value in zip(names, call.args, strict=False):
            self.bind((*scope, name), value, caller)
        for keyword in call.keywords:
            if keyword.arg:
                self.bind((*scope, keyword.arg), keyword.value, caller)

    def keys_of(self, node: ast.expr, scope: Scope) -> Iterator[Key]:
        """What a name or attribute may stand for, innermost scope first."""
        if isinstance(node, ast.Attribute):
            yield ("", "attr", node.attr)
        elif isinstance(node, ast.Name):
            file, path = scope
            while True:
                if (file, path, node.id) in self.bindings:
                    yield (file, path, node.id)
                    return
                if not path:
                    return
                path = path.rpartition(".")[0]

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
        flags = [b for b in values if isinstance(b.value, ast.Constant) and not _is_number(b.value)]
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


class Counter(ast.expr):
    """The number that `enumerate` counts with."""


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return number and not isinstance(node.value, bool)  # type: ignore[attr-defined]


def _gives_number(choice: ast.IfExp) -> bool:
    """Whether what it chooses between are two numbers, as far as either side shows."""
    sides = choice.body, choice.orelse
    plain = [s for s in sides if isinstance(s, ast.Constant) and not _is_number(s)]
    return not plain and any(_is_numeric(side) for side in sides)


def _is_numeric(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        return True
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod | ast.BitAnd | ast.BitOr | ast.Add):
        return True
    return _is_number(node) or (isinstance(node, ast.Call) and last_name(node.func) in NUMERIC)


def _is_test_of_end(node: ast.expr) -> bool:
    """`x is None` and the like: other questions about a batch are about its content."""
    return any(
        isinstance(n, ast.Compare)
        and any(isinstance(c, ast.Constant) and c.value is None for c in n.comparators)
        for n in ast.walk(node)
    )


class _Collector(ast.NodeVisitor):
    """Walks one file and tells the bindings."""

    def __init__(self, origins: Origins, file: str) -> None:
        self.origins = origins
        self.file = file
        self.path: list[str] = []
        self.tests: list[ast.expr] = []  # the conditions around

    @property
    def scope(self) -> Scope:
        return self.file, ".".join(self.path)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr] = [value] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                values = value.elts
            for each, its in zip(target.elts, values, strict=True):
                self._assign(each, its)
            return
        key = self._key(target)
        if key is None:
            return
        self.origins.bind(key, value, self.scope)
        self.origins.under[key] += [(test, self.scope) for test in self.tests]
        # What a branch merely changes is data; what it switches on or makes says who one is.
        made = isinstance(value, ast.List) or (
            isinstance(value, ast.Call) and last_name(value.func)[:1].isupper()
        )
        switched = isinstance(value, ast.Constant) and not _is_number(value)
        for test in self.tests if made or switched else ():
            self.origins.bind(key, test, self.scope, by_flow=True)

    def _key(self, target: ast.expr) -> Key | None:
        if isinstance(target, ast.Name):
            return (*self.scope, target.id)
        return ("", "attr", target.attr) if isinstance(target, ast.Attribute) else None

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        counts = isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "enumerate"
        if counts and isinstance(node.target, ast.Tuple) and len(node.target.elts) == 2:
            self._assign(node.target.elts[0], Counter())
            self._assign(node.target.elts[1], node.iter)
        else:
            self._assign(node.target, node.iter)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.tests.append(node.test)
        for each in (*node.body, *node.orelse):
            self.visit(each)
        self.tests.pop()

    def visit_Import(self, node: ast.Import) -> None:
        self._import(node.names, [alias.name for alias in node.names])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level:
            self._import(node.names, [node.module] * len(node.names))

    def _import(self, names: list[ast.alias], modules: list[str]) -> None:
        for alias, module in zip(names, modules, strict=True):
            if module.partition(".")[0] not in self.origins.own_modules:
                self.origins.of_library.add((self.file, alias.asname or alias.name.partition(".")[0]))

    def visit_Call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        if name:
            self.origins.calls[name].append((self.scope, node))
        given = [*node.args, *(k.value for k in node.keywords)]
        self.origins.handed_over |= {last_name(each) for each in given} - {""}
        self._give_level(node)
        # `if rank == 0: callbacks.append(...)` makes the list depend on the rank.
        if isinstance(node.func, ast.Attribute) and name in GROWS and self.tests:
            key = self._key(node.func.value)
            for test in self.tests if key else ():
                self.origins.bind(key, test, self.scope, by_flow=True)  # type: ignore[arg-type]
        self.generic_visit(node)

    def _give_level(self, node: ast.Call) -> None:
        level = level_given(node)
        for question in QUESTIONS if level is not None else ():
            for each in (level, *self.tests):
                self.origins.bind(("", "func", question), each, self.scope, by_flow=True)  # type: ignore[arg-type]

    def visit_Return(self, node: ast.Return) -> None:
        function = self.path[-1] if self.path else ""
        if node.value is not None:
            self.origins.bind(("", "func", function), node.value, self.scope)
            # Numbers that only differ by rank are data here as well.
            number = isinstance(node.value, ast.Constant) and isinstance(node.value.value, float)
            for test in self.tests if isinstance(node.value, ast.Constant) and not number else ():
                self.origins.bind(("", "func", function), test, self.scope, by_flow=True)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        tests, self.tests = self.tests, []
        self.path.append(node.name)
        self.origins.functions[node.name].append((self.scope, node))
        self.generic_visit(node)
        self.path.pop()
        self.tests = tests

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.origins.classes[node.name] = (self.scope, node)
        self.path.append(node.name)
        self.generic_visit(node)
        self.path.pop()
