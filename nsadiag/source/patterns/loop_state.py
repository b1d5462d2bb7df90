"""The state that decides when a loop ends: whatever its endings read, and whatever has a say in that, around the loop."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.evidence.rehearsal.reads import Read, chain_of, names_in
from nsadiag.source.model import Function, Loop, SourceFile, calls_in, given_to, name_of, own_nodes
from nsadiag.source.patterns.endings import PURE, EndlessLoop

# Modules whose functions ask nothing of the world. Random numbers are seen in what is made of them.
CLOSED = {
    "base64", "bisect", "collections", "copy", "decimal", "fractions", "functools", "hashlib", "heapq", "itertools", "json",
    "math", "np", "numpy", "operator", "random", "re", "statistics", "string", "struct", "textwrap", "torch", "unicodedata",
}  # fmt: skip
# Parts of these that do ask.
OPEN = {"cuda", "distributed", "dist", "load", "multiprocessing", "memmap", "fromfile", "loadtxt"}
MAKING = {"__init__", "__new__", "__post_init__"}
BUILTINS = PURE | {
    "dict", "divmod", "enumerate", "filter", "frozenset", "getattr", "hash", "isinstance", "list", "map", "next", "ord",
    "print", "range", "reversed", "set", "sorted", "tuple", "type", "zip", "issubclass", "hasattr", "chr", "bytes",
    "bytearray", "complex", "format", "iter", "repr", "slice",
}  # fmt: skip
# Classes that are made without asking anything, and whose subclasses are.
PLAIN_CLASSES = {
    "object",
    *(
        name
        for name, each in vars(builtins).items()
        if isinstance(each, type) and issubclass(each, BaseException)
    ),
}


@dataclass(frozen=True, kw_only=True)
class LoopState:
    """The names and calls that have a say in when a loop ends.

    `reads`: names and attributes. `methods`: values on which something is called, of whose types it depends whether that asks
    the world. `functions`: those of the same file that are called on the way. `asks`: a call of which nobody knows
    what it asks; "" where there is none. `conditions`: the endings, as written.
    """

    reads: frozenset[Read]
    methods: frozenset[Read]
    functions: frozenset[str]
    asks: str
    conditions: tuple[str, ...]
    remainders: bool = False  # a counter of which only a remainder counts has a say


def state_of(file: SourceFile, loop: EndlessLoop, node: Loop) -> LoopState:
    """The state of one loop. Where an exception or a bare statement may end it, all that happens in it has a say."""
    slice_ = _Slice(file, node)
    if loop.tries or loop.bare or loop.nexts or not loop.endings:
        slice_.take_all(node)
    else:
        own = [node.test] if isinstance(node, ast.While) else []
        slice_.take(*own, *(each.test for each in _leaving(node)))
    if isinstance(node, ast.For):
        slice_.take(node.iter)
    slice_.close()
    return LoopState(
        reads=frozenset(slice_.reads),
        methods=frozenset(slice_.methods),
        functions=frozenset(slice_.functions),
        asks=slice_.asks,
        conditions=tuple(dict.fromkeys(each.text for each in loop.endings)),
        remainders=slice_.remainders,
    )


def is_bounded(node: Loop) -> bool:
    """Whether it is a `for` over a range."""
    given = node.iter if isinstance(node, ast.For) else None
    return isinstance(given, ast.Call) and name_of(given) == "range"


def only_runs_out(node: Loop) -> bool:
    """Whether it is a `for` that nothing in it leaves early."""
    leaves = ast.Break | ast.Return | ast.Raise | ast.Yield
    return isinstance(node, ast.For) and not any(isinstance(each, leaves) for each in own_nodes(node))


def stores_into(node: Loop) -> bool:
    """Whether it sets, or deletes, attributes or items of objects."""
    parts = (each for each in own_nodes(node) if isinstance(each, ast.Subscript | ast.Attribute))
    return any(isinstance(each.ctx, ast.Store | ast.Del) for each in parts)


def iterated(node: Loop) -> str:
    """The iterable of a `for`, as written; "" of a `while`."""
    return ast.unparse(node.iter) if isinstance(node, ast.For) else ""


def inner_loops(node: Loop) -> Iterator[Loop]:
    """The loops within it, in its function."""
    return (each for each in own_nodes(node) if isinstance(each, Loop))


def _leaving(node: Loop) -> Iterator[ast.If]:
    leaves = ast.Break | ast.Return | ast.Raise
    for each in own_nodes(node):
        if isinstance(each, ast.If) and any(isinstance(leaf, leaves) for leaf in own_nodes(each)):
            yield each


def _modules(file: SourceFile) -> dict[str, str]:
    names = [alias for node in file.all(ast.Import) for alias in node.names]
    return {(alias.asname or alias.name).partition(".")[0]: alias.name for alias in names}


def _parts_of_modules(file: SourceFile) -> dict[str, str]:
    return {
        alias.asname or alias.name: node.module or ""
        for node in file.all(ast.ImportFrom)
        for alias in node.names
    }


def written_in(node: ast.AST) -> frozenset[Read]:
    """Names and attributes that the statements of a loop write to, its own target among them."""
    return frozenset(written for each in (node, *own_nodes(node)) for written, _ in _writes(each))


class _Slice:
    """Names that have a say, until nothing is added any more."""

    def __init__(self, file: SourceFile, loop: Loop) -> None:
        self._file, self._loop = file, loop
        self.reads: set[Read] = set()
        self.methods: set[Read] = set()
        self.functions: set[str] = set()
        self.asks = ""
        self.remainders = False
        self._writes = [
            (written, value, each) for each in own_nodes(loop) for written, value in _writes(each)
        ]
        self._imported = {**_modules(file), **_parts_of_modules(file)}

    def take(self, *given: ast.AST) -> None:
        """Adds all that these expressions read and call."""
        for node in given:
            self.remainders |= any(map(_is_remainder, ast.walk(node)))
            for read in _read_in(node):
                if read[0] not in self._imported:
                    self.reads.add(read)
            for call in calls_in(node):
                self._take_call(call)

    def take_all(self, node: ast.AST) -> None:
        """Adds all that any statement of a loop or a function reads and calls."""
        for statement in (node, *own_nodes(node)):
            if isinstance(statement, ast.stmt):
                self.take(*(each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.expr)))

    def close(self) -> None:
        """Adds what the names depend on: values that are written to them, and conditions under which they are."""
        before = -1
        while before != len(self.reads):
            before = len(self.reads)
            for written, values, node in self._writes:
                if any(_touches(written, read) for read in self.reads):
                    self.take(*values, *self._around(node))

    def _around(self, node: ast.AST) -> Iterator[ast.expr]:
        parents = self._file.parents
        while node is not self._loop and (node := parents.get(node, self._loop)) is not self._loop:
            if isinstance(node, ast.If | ast.While):
                yield node.test
            elif isinstance(node, ast.For):
                yield node.iter

    def _take_call(self, call: ast.Call) -> None:
        name = name_of(call)
        chain = chain_of(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ()
        root = self._imported.get(chain[0]) if chain else None
        if root is not None:
            if root.partition(".")[0] not in CLOSED or {*chain, *root.split(".")} & OPEN:
                self.asks = self.asks or ast.unparse(call)
            return
        own = [each for each in self._file.functions if each.name == name]
        if own and (len(chain) == 1 or chain[:1] in (("self",), ("cls",)) or not chain):
            for function in own:
                self._take_function(function)
        elif len(chain) > 1:
            self.methods.add(chain[:-1])
            for function in own:
                self._take_function(function)
        elif isinstance(call.func, ast.Attribute):
            pass  # on what another expression comes to, whose own parts are looked at
        elif (made := self._made(name)) is not None:
            for function in made:
                self._take_function(function)
        elif name not in BUILTINS:
            self.asks = self.asks or ast.unparse(call)

    def _made(self, name: str) -> list[Function] | None:
        """The functions that run when an object of that class is made; None where nobody knows, as of a library's subclass."""
        if name in PLAIN_CLASSES:
            return []
        found = [each for each in self._file.all(ast.ClassDef) if each.name == name]
        if len(found) != 1 or found[0].keywords:
            return None
        inherited: list[Function] = []
        for base in found[0].bases:
            made = self._made(base.id) if isinstance(base, ast.Name) else None
            if made is None:
                return None
            inherited += made
        own = [each for each in found[0].body if isinstance(each, Function) and each.name in MAKING]
        return [*own, *inherited]

    def _take_function(self, function: Function) -> None:
        if function.name in self.functions:
            return
        self.functions.add(function.name)
        for call in (each for each in own_nodes(function) if isinstance(each, ast.Call)):
            self._take_call(call)
        for read in (r for each in function.body for r in names_in_statements(each)):
            if read[0] in ("self", "cls") and len(read) > 1:
                self.reads.add(read)


def names_in_statements(node: ast.AST) -> Iterator[Read]:
    """Names and attributes that any expression below reads."""
    for each in (node, *own_nodes(node)):
        if isinstance(each, ast.Attribute) and (chain := chain_of(each)):
            yield chain


def _read_in(node: ast.AST) -> Iterator[Read]:
    """Names that an expression reads, without counters of which only a remainder counts."""
    if isinstance(node, ast.BinOp) and _is_remainder(node):
        yield from _read_in(node.right)
        return
    if isinstance(node, ast.Name | ast.Attribute | ast.Lambda):
        yield from names_in(node)
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Call) and child is node.func:
            # The method of `self` is looked into; what else a method is called on may be a value.
            if isinstance(child, ast.Attribute) and chain_of(child)[:1] not in (("self",), ("cls",)):
                yield from _read_in(child.value)
            elif isinstance(child, ast.Attribute) and len(chain_of(child)) > 2:
                yield from names_in(child.value)
            continue
        yield from _read_in(child)


def _is_remainder(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Name)


def _writes(node: ast.AST) -> Iterator[tuple[Read, list[ast.expr]]]:
    """Names that a statement writes to, with the expressions it writes: assignments, targets of loops, and what is called on a value."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for each in (t for target in targets for t in _flat(target)):
            inside = [each.slice] if isinstance(each, ast.Subscript) else []
            if (chain := _base(each)) and node.value is not None:
                yield chain, [node.value, *inside]
    elif isinstance(node, ast.For):
        for each in _flat(node.target):
            yield _base(each), [node.iter]
    elif isinstance(node, ast.Call) and name_of(node) not in BUILTINS:
        # Whatever it is called on, or given, it may change.
        func, given = node.func, given_to(node)
        named = [func.value] if isinstance(func, ast.Attribute) else []
        for chain in filter(None, map(_base, [*named, *given])):
            yield chain, given


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _flat(each)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def _base(node: ast.expr) -> Read:
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return chain_of(node) if isinstance(node, ast.Name | ast.Attribute) else ()


def _touches(written: Read, read: Read) -> bool:
    return bool(written) and (written[: len(read)] == read or read[: len(written)] == written)
