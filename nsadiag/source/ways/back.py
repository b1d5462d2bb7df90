"""From an expression back to an origin by the source alone: what its names were bound to, and what the user's functions give."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nsadiag.evidence.records import Origin
from nsadiag.evidence.rehearsal.reads import names_in
from nsadiag.source.bindings import Binding
from nsadiag.source.control import Program
from nsadiag.source.model import Function, Scope, calls_in, last_name, name_of, own_nodes, returned_by
from nsadiag.source.patterns.origins import contents, origin_in
from nsadiag.source.vocabulary import is_rank

DEEPEST = 8  # bindings and functions that stand for one another
MOST_NAMESAKES = 3  # functions of one name, any of which a call may be of
ANSWERS, MAKES = ("__bool__", "__iter__", "__next__", "__len__"), ("__init__", "__post_init__")
NAMES = ast.Call | ast.Attribute | ast.Subscript | ast.Name
COMPUTES = ast.BinOp | ast.Compare | ast.BoolOp | ast.IfExp | ast.comprehension
SEEDS = {"Generator", "manual_seed", "default_rng", "Random", "RandomState"}
# Of a set these say the same in whichever order it comes.
IN_NO_ORDER = {"sorted", "len", "sum", "min", "max", "any", "all"}


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One line on the way back. `name` is what it binds; "" where it is a condition or what a function returns."""

    scope: Scope
    node: ast.expr
    name: str = ""
    is_condition: bool = False
    is_attribute: bool = False
    is_loop: bool = False  # it gives each of the value's parts in turn

    @property
    def text(self) -> str:
        """The expression as Python would write it."""
        return ast.unparse(self.node)

    @property
    def is_test(self) -> bool:
        """Whether it is what an `if`, a `while` or the like asks."""
        return self.is_condition and not isinstance(self.node, ast.IfExp)

    @property
    def is_only_read(self) -> bool:
        """Whether the line merely names an origin, such as `rank = dist.get_rank()` or a set: ranks may differ in that."""
        return all(isinstance(each, NAMES | ast.Set | ast.SetComp) for each in _values(self.node))

    @property
    def is_unordered(self) -> bool:
        """Whether it is a set, whose order goes by the salt of hashes."""
        made = isinstance(self.node, ast.Call) and name_of(self.node) in ("set", "frozenset")
        return made or isinstance(self.node, ast.Set | ast.SetComp)

    @property
    def computes(self) -> bool:
        """Whether something is made there of what comes in; a generator's seed is not."""
        nodes = [*ast.walk(self.node)]
        is_seed = any(isinstance(each, ast.Call) and name_of(each) in SEEDS for each in nodes)
        return (
            not is_seed
            and not isinstance(self.node, ast.SetComp)
            and any(isinstance(each, COMPUTES) for each in nodes)
        )

    @property
    def chooses(self) -> bool:
        """Whether the value is one of a few, by what is asked there."""
        return self.is_condition or isinstance(self.node, ast.Compare | ast.BoolOp | ast.IfExp)

    @property
    def leaves_out(self) -> bool:
        """Whether how much comes out of it depends on what goes in: `[each for each in rows if each.label]`."""
        parts = (part for node in ast.walk(self.node) for part in getattr(node, "generators", ()))
        return any(part.ifs for part in parts)


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way to an origin, the nearest step first. Without steps the expression is an origin itself."""

    origin: Origin = "unknown"
    steps: tuple[Hop, ...] = ()

    def behind(self, step: Hop) -> Way:
        """The same, one step further away."""
        return Way(origin=self.origin, steps=(step, *self.steps))


NO_WAY = Way()


class Ways:
    """Ways back in one program."""

    def __init__(self, program: Program) -> None:
        self._program, self._known = program, dict[ast.AST, Way]()
        self._flow = program.dataflow

    def of(self, node: ast.expr, scope: Scope, depth: int = 0) -> Way:
        """The shortest way to an origin; NO_WAY where the source shows none.

        What a function of the user's made of a rank explains more than that it was given one, and so is looked into first.
        """
        if node in self._known or depth > DEEPEST:
            return self._known.get(node, NO_WAY)
        self._known[node] = NO_WAY  # of what comes back to it
        found = _best(self._inside(node, scope, depth))
        if found is NO_WAY:
            found = _best([Way(origin=self._own(node, scope)), *self._bound(node, scope, depth)])
        if found.origin == "environment" and isinstance(node, ast.Call) and name_of(node) in IN_NO_ORDER:
            found = NO_WAY
        self._known[node] = found
        return found

    def _own(self, node: ast.expr, scope: Scope) -> Origin:
        """The origin that the expression names itself; no function of the user's is one by its name."""
        found = origin_in(node, lambda name: name in self._flow.functions or name in self._flow.classes)
        is_seeded = any(k.arg == "generator" for call in calls_in(node) for k in call.keywords)
        if found == "unknown" or (found == "random state" and is_seeded):
            return "data" if Hop(scope=scope, node=node).leaves_out else "unknown"
        return found

    # -- functions ------------------------------------------------------------------------------------

    def _inside(self, node: ast.expr, scope: Scope, depth: int) -> Iterator[Way]:
        for each in contents(node):
            for expression, inner, is_condition in self._answers(each, scope):
                way = self.of(expression, inner, depth + 1)
                if way is not NO_WAY:
                    yield way.behind(Hop(scope=inner, node=expression, is_condition=is_condition))

    def _answers(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Scope, bool]]:
        """The expressions that decide the value of a call, or of a property, of the user's own."""
        if isinstance(node, ast.Call):
            name = name_of(node)
            if name in self._flow.classes and not self._is_library(scope, node):
                yield from self._of_object(name)
            elif not self._is_library(scope, node):
                yield from self._of_functions(name)
        elif isinstance(node, ast.Attribute) and any(map(_is_property, self._named(node.attr))):
            yield from self._of_functions(node.attr)

    def _is_library(self, scope: Scope, call: ast.Call) -> bool:
        return (scope, call) not in self._flow.calls_of(name_of(call)) if name_of(call) else True

    def _named(self, name: str) -> list[Function]:
        return [function for _, function in self._flow.functions.get(name, ())]

    def _of_functions(self, name: str) -> Iterator[tuple[ast.expr, Scope, bool]]:
        known = self._flow.functions.get(name, [])
        for scope, function in known if len(known) <= MOST_NAMESAKES else ():
            yield from _decides(function, scope, self._program)

    def _of_object(self, name: str) -> Iterator[tuple[ast.expr, Scope, bool]]:
        """An object's answers when it is tested or iterated over, and the values that it was made with."""
        scope, node = self._flow.classes[name]
        inside = Scope(scope.file, f"{scope.path}.{name}".strip("."))
        methods = {each.name: each for each in node.body if isinstance(each, Function)}
        for each in (methods[name] for name in ANSWERS if name in methods):
            yield from _decides(each, Scope(inside.file, f"{inside.path}.{each.name}"), self._program)
        for each in (methods[name] for name in MAKES if name in methods):
            own = Scope(inside.file, f"{inside.path}.{each.name}")
            for statement in ast.walk(each):
                if isinstance(statement, ast.Assign) and any(
                    isinstance(t, ast.Attribute) for t in statement.targets
                ):
                    yield statement.value, own, False

    # -- names ----------------------------------------------------------------------------------------

    def _bound(self, node: ast.expr, scope: Scope, depth: int) -> Iterator[Way]:
        for name in _names(node):
            whole: ast.expr = name
            ways = list(self._of_name(name, scope, depth))
            # What an object is was decided where its name was bound.
            while not ways and isinstance(whole, ast.Attribute):
                whole = whole.value
                if isinstance(whole, ast.Name | ast.Attribute):
                    ways = list(self._of_name(whole, scope, depth))
            yield from ways

    def _of_name(self, name: ast.Name | ast.Attribute, scope: Scope, depth: int) -> Iterator[Way]:
        bindings = self._bindings(name, scope)
        if not bindings and is_rank(last_name(name)):
            yield Way(origin="rank")
        for binding in bindings:
            way = self.of(binding.value, binding.scope, depth + 1)
            if way is NO_WAY:
                continue
            is_attribute = isinstance(name, ast.Attribute)
            is_given = not is_attribute and binding.scope.path != binding.key[1] and not binding.by_flow
            step = Hop(
                scope=binding.scope, node=binding.value, name=binding.key[2], is_condition=binding.by_flow,
                is_attribute=is_attribute, is_loop=isinstance(self._program.parents.get(binding.value), ast.For),
            )  # fmt: skip
            # A caller only passes on what came from somewhere else.
            yield way if is_given and way.steps else way.behind(step)
        yield from self._under(bindings, depth)

    def _under(self, bindings: list[Binding], depth: int) -> Iterator[Way]:
        """The conditions under which a name gets another value."""
        for test, scope in {t: s for b in bindings for t, s in self._flow.under.get(b.key, ())}.items():
            way = self.of(test, scope, depth + 1)
            if way is not NO_WAY:
                yield way.behind(Hop(scope=scope, node=test, is_condition=True, is_attribute=True))

    def _bindings(self, name: ast.Name | ast.Attribute, scope: Scope) -> list[Binding]:
        """The bindings that a name can mean: for `self.x` those of its class, where it has any; for a loop's name that of the loop around."""
        found = self._flow.bound_to(name, scope)
        around = [b for b in found if b.scope == scope and self._goes_round(b.value, name.lineno)]
        if around:
            return around
        if (
            isinstance(name, ast.Attribute)
            and isinstance(name.value, ast.Name)
            and name.value.id in ("self", "cls")
        ):
            own = f"{scope.path.rpartition('.')[0]}."
            return [
                b for b in found if b.scope.path.startswith(own) or b.owner not in ("self", "cls")
            ] or found
        return found

    def _goes_round(self, value: ast.expr, line: int) -> bool:
        """Whether a loop over the value has the line in its body."""
        loop = self._program.parents.get(value)
        return isinstance(loop, ast.For) and loop.body[0].lineno <= line <= (loop.end_lineno or 0)


def _decides(function: Function, scope: Scope, program: Program) -> Iterator[tuple[ast.expr, Scope, bool]]:
    """The values that a function returns, or the number that a generator yields; then the conditions under which it does."""
    ends: list[ast.Yield | ast.YieldFrom | ast.Return] = [
        n for n in own_nodes(function) if isinstance(n, ast.Yield | ast.YieldFrom)
    ]
    if ends:
        yield from ((n.value, scope, False) for n in ends if isinstance(n, ast.YieldFrom))
    else:
        yield from ((value, scope, False) for value in returned_by(function))
        ends = [n for n in own_nodes(function) if isinstance(n, ast.Return)]
    for end in ends:
        for outer in program.path_to(scope.file, end.lineno)[::-1]:
            if isinstance(outer, ast.If | ast.While):
                yield outer.test, scope, True
            elif isinstance(outer, ast.For):
                yield outer.iter, scope, False


def _best(ways: Iterable[Way]) -> Way:
    """A rank is certain to differ, data may; of equals the shortest."""
    order: tuple[Origin, ...] = (
        "rank",
        "random state",
        "time",
        "file system",
        "environment",
        "exception",
        "data",
    )
    known = [way for way in ways if way.origin != "unknown"]
    # What chooses says more than what only passes on.
    return min(
        known,
        key=lambda way: (order.index(way.origin), not any(map(_narrows, way.steps)), len(way.steps)),
        default=NO_WAY,
    )


def _narrows(step: Hop) -> bool:
    return step.is_condition or step.leaves_out


def _names(node: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """The names and whole attributes that the value depends on."""
    wanted = set(names_in(node))
    for each in contents(node):
        if (isinstance(each, ast.Name) and (each.id,) in wanted) or (
            isinstance(each, ast.Attribute)
            and any(name[-1] == each.attr and len(name) > 1 for name in wanted)
        ):
            yield each


def _values(node: ast.expr) -> list[ast.expr]:
    """The parts of `rank, world = dist.get_rank(), dist.get_world_size()`; what a conversion converts."""
    if isinstance(node, ast.Tuple | ast.List):
        return [part for each in node.elts for part in _values(each)]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("int", "str", "bool")
    ):
        return [part for each in node.args for part in _values(each)]
    return [node]


def _is_property(function: Function) -> bool:
    names = {d.id if isinstance(d, ast.Name) else getattr(d, "attr", "") for d in function.decorator_list}
    return bool(names & {"property", "cached_property"})
