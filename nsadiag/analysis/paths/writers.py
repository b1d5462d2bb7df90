"""The dynamic slice: who last wrote, on the recorded path, a name that a step read."""

from __future__ import annotations

import ast
import bisect
from collections import defaultdict
from collections.abc import Iterator

from nsadiag.analysis.paths.walk import Frame, Step, Walk
from nsadiag.evidence.rehearsal.reads import Read, chain_of, names_in, names_read
from nsadiag.source.bindings import GROWS
from nsadiag.source.model import Function, SourceModel

# Methods that change what they are called on, besides those that make it grow.
CHANGES = GROWS | {"pop", "popleft", "remove", "clear", "discard", "sort", "shuffle", "reverse", "setdefault", "appendleft", "put"}  # fmt: skip


class Slices:
    """Reads and writes of the steps of one walk."""

    def __init__(self, code: SourceModel, walk: Walk) -> None:
        self.code, self.walk = code, walk
        self._nodes: dict[tuple[str, int], ast.stmt | None] = {}
        self._writes: dict[tuple[str, int], frozenset[Read]] = {}
        self._by_last: dict[str, list[Step]] | None = None

    def node(self, step: Step) -> ast.stmt | None:
        """The statement of the step."""
        if step.at not in self._nodes:
            file = self.code.file(step.frame.file)
            self._nodes[step.at] = file.statement_at(step.line) if file else None
        return self._nodes[step.at]

    def is_handler(self, step: Step) -> bool:
        """Whether the step's line is an `except`."""
        file = self.code.file(step.frame.file)
        return file is not None and any(node.lineno == step.line for node in file.all(ast.ExceptHandler))

    def reads(self, step: Step) -> tuple[Read, ...]:
        node = self.node(step)
        return names_read(node) if node is not None else ()

    def writes(self, step: Step) -> frozenset[Read]:
        """Names and attributes that the step's statement gives a value, or whose content it changes."""
        if step.at not in self._writes:
            node = self.node(step)
            self._writes[step.at] = (
                frozenset(filter(None, _written(node))) if node is not None else frozenset()
            )
        return self._writes[step.at]

    def writer(self, step: Step, read: Read) -> Step | None:
        """The last step before this one that wrote the name: in its frame, an attribute's anywhere, a global's at the top."""
        known = self._writers.get(read[-1], [])
        at = bisect.bisect_left(known, step.index, key=lambda each: each.index)
        for each in reversed(known[:at]):
            if len(read) > 1 or each.frame is step.frame or self._is_visible(each, step):
                return each
        # What an object is was decided where its name was bound.
        return self.writer(step, read[:-1]) if len(read) > 1 else None

    def _is_visible(self, writer: Step, reader: Step) -> bool:
        """Whether a plain name that was written there is the one that is read here: of the module, or of a function around."""
        ours, theirs = writer.frame.code, reader.frame.code
        return ours.file == theirs.file and (
            ours.text == "<module>" or theirs.text.startswith(f"{ours.text}.<locals>.")
        )

    @property
    def _writers(self) -> dict[str, list[Step]]:
        if self._by_last is None:
            self._by_last = defaultdict(list)
            for step in self.walk.steps[1:]:
                for name in self.writes(step):
                    self._by_last[name[-1]].append(step)
        return self._by_last

    def argument(self, frame: Frame, name: str) -> tuple[Read, ...] | None:
        """The names in the argument that a parameter was given by the caller's line; None where it is no parameter."""
        file = self.code.file(frame.file)
        function = file.function_at(frame.code.line) if file else None
        if function is None or function.name != frame.code.text.rpartition(".")[2]:
            function = (
                next((f for f in file.functions if _first_line(f) == frame.code.line), None) if file else None
            )
        if function is None or frame.caller is None:
            return None
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        every = {*names, *(a.arg for a in function.args.kwonlyargs)}
        if name not in every:
            return None
        call = self._call(frame.caller, function.name)
        if call is None:
            return self.reads(frame.caller)
        if names and names[0] in ("self", "cls"):
            names = names[1:]
        given: ast.expr | None = next((k.value for k in call.keywords if k.arg == name), None)
        if given is None and name in names and names.index(name) < len(call.args):
            given = call.args[names.index(name)]
        return tuple(dict.fromkeys(names_in(given))) if given is not None else ()

    def _call(self, step: Step, name: str) -> ast.Call | None:
        node = self.node(step)
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)] if node is not None else []
        named = [c for c in calls if (chain_of(c.func) or ("",))[-1] == name]
        return named[0] if len(named) == 1 else None


def _first_line(function: Function) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _written(node: ast.stmt) -> Iterator[Read]:
    for target in _bound_by(node):
        yield from _targets(target)
    if isinstance(node, ast.Expr):
        yield from _changed(node)
    for each in ast.walk(node) if isinstance(node, ast.If | ast.While | ast.Assign | ast.Return) else ():
        if isinstance(each, ast.NamedExpr):
            yield (each.target.id,)


def _bound_by(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        return [node.target]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def _changed(node: ast.Expr) -> Iterator[Read]:
    """Whatever a method changes that is called for that alone; `random.shuffle(order)` changes what it is given."""
    for call in ast.walk(node.value):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in CHANGES:
            yield chain_of(call.func.value)
            for given in call.args[:1] if call.func.attr == "shuffle" else ():
                yield chain_of(given)


def _targets(node: ast.expr) -> Iterator[Read]:
    if isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from _targets(each)
    elif isinstance(node, ast.Starred | ast.Subscript):
        yield from _targets(node.value)
    else:
        yield chain_of(node)
