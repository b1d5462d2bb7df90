"""The one line of the user's sources that does a certain thing; None where there is none, or several."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import (
    Function,
    SourceModel,
    calls_in,
    given_to,
    last_name,
    name_of,
    place,
)
from nsadiag.source.patterns.rank_conditions import depends_on_rank

SEEDS = "manual_seed"
SCHEDULER = re.compile(r"sched|plateau", re.IGNORECASE)


def only_call(code: SourceModel, function: str) -> Place | None:
    """The line that calls it."""
    return only_where(code, lambda call: name_of(call) == function)


def last_call(code: SourceModel, function: str) -> Place | None:
    """The last line that calls it, where one file does: what wraps a model from the inside out ends with the whole."""
    found = [(file, call.lineno) for file, call in _calls(code) if name_of(call) == function]
    return place(*max(found), None) if len({file for file, _ in found}) == 1 else None


def only_where(code: SourceModel, is_it: Callable[[ast.Call], bool]) -> Place | None:
    """The line of the one call of which that is true."""
    return _only((file, call.lineno) for file, call in _calls(code) if is_it(call))


def only_keyword(code: SourceModel, keyword: str) -> Place | None:
    """The line that gives an argument of that name: in the call itself, or in a dict that is unpacked into it."""
    named = ((file, k) for file, call in _calls(code) for k in call.keywords if k.arg == keyword)
    found = [(file, k.value.lineno) for file, k in named if not _is_none(k.value)]
    for file, node in _nodes(code):
        if isinstance(node, ast.Dict):
            keys = zip(node.keys, node.values, strict=True)
            found += [(file, v.lineno) for k, v in keys if isinstance(k, ast.Constant) and k.value == keyword and not _is_none(v)]  # fmt: skip
    return _only(iter(found))


def only_assignment(code: SourceModel, attribute: str) -> Place | None:
    """The line that gives some object's attribute of that name a new value; `self.x = ...` is where it was made."""
    targets = (
        (file, target)
        for file, node in _nodes(code)
        if isinstance(node, ast.Assign) and attribute
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == attribute
    )
    return _only((file, t.lineno) for file, t in targets if ast.unparse(t) != f"self.{attribute}")


def last_assignment(code: SourceModel, name: str) -> Place | None:
    """The last line that gives a variable, or some object's attribute, of that name a new value; not `self.x = ...`."""
    found = [
        (file, node.lineno)
        for file, node in _nodes(code)
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and name == last_name(node)
        and ast.unparse(node) != f"self.{name}"
    ]
    return place(*max(found), None) if len({file for file, _ in found}) == 1 else None


def written_attribute(code: SourceModel, name: str) -> Place | None:
    """The one line that writes into some object's attribute of that name: in place, or by an assignment other than its first."""
    called = [
        (file, call.lineno)
        for file, call in _calls(code)
        if isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_")
        and any(last_name(n) == name for n in ast.walk(call.func.value))
    ]  # fmt: skip
    stored = [
        (file, node.lineno)
        for file, node in _nodes(code)
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
        and any(last_name(n) == name for n in ast.walk(node))
    ]  # fmt: skip
    return _only(iter(dict.fromkeys(called + stored)))


def only_item_write(code: SourceModel, key: str) -> Place | None:
    """The line that gives the item of that key a new value, as `group["lr"] = rate` does."""
    return _only(
        (file, node.lineno)
        for file, node in _nodes(code)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == key
    )


def only_use(code: SourceModel, attribute: str) -> Place | None:
    """The line that uses an object's attribute of that name, other than to give it a value."""
    used = (
        (file, node.lineno)
        for file, node in _nodes(code)
        if isinstance(node, ast.Attribute)
        and attribute
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
    )
    return _only(iter(dict.fromkeys(used)))


def call_near(code: SourceModel, function: str, line: Place | None) -> Place | None:
    """The one line that calls it within the function (or the top of the file) that holds a line."""
    found = _calls_near(code, function, line)
    return place(*found[0][:2], None) if len({at for _, at, _ in found}) == 1 else None


def target_near(code: SourceModel, function: str, line: Place | None) -> Place | None:
    """The last line before that one call that gives a new value to the variable which it is given second."""
    found = _calls_near(code, function, line)
    call = found[0][2] if len(found) == 1 and len(found[0][2].args) > 1 else None
    node: ast.AST | None = call.args[1] if call is not None else None
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if call is None or not isinstance(node, ast.Name):
        return None
    file = found[0][0]
    given = [n.lineno for name, n in _nodes(code) if name == file and isinstance(n, ast.Name) and n.id == node.id
             and isinstance(n.ctx, ast.Store) and n.lineno <= call.lineno]  # fmt: skip
    return place(file, max(given), None) if given else None


def _calls_near(code: SourceModel, function: str, line: Place | None) -> list[tuple[str, int, ast.Call]]:
    kept = next((file for file in code.kept if line is not None and file.path == line.file), None)
    if kept is None or line is None:
        return []
    around = kept.function_at(line.line)
    return [
        (kept.path, call.lineno, call)
        for call in kept.calls
        if name_of(call) == function and kept.function_at(call.lineno) is around
    ]


def scaled_loss(code: SourceModel) -> Place | None:
    """The line that multiplies a loss where a test on the rank says so, or by something named after the rank."""
    return _only(
        (file.path, node.lineno)
        for file in code.kept
        for node in file.nodes
        if isinstance(node, ast.Assign | ast.AugAssign)
        and _scales_loss(node)
        and any(map(depends_on_rank, (node, *(each.test for each in file.around(node.lineno, ast.If)))))
    )


def _scales_loss(node: ast.Assign | ast.AugAssign) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    by = node.value if isinstance(node, ast.Assign) else node
    return "loss" in ast.unparse(target) and isinstance(getattr(by, "op", None), ast.Mult | ast.Div)


def metric_step(code: SourceModel) -> Place | None:
    """The line that steps a scheduler by a metric, which is each rank's own."""
    return only_where(code, lambda call: _steps(call) and bool(call.args))


def scheduler_step(code: SourceModel) -> Place | None:
    """The line that steps a scheduler: by a metric rather than by a count."""
    return metric_step(code) or only_where(code, _steps)


def _steps(call: ast.Call) -> bool:
    function = call.func
    stepped = isinstance(function, ast.Attribute) and function.attr == "step"
    return stepped and bool(SCHEDULER.search(ast.unparse(function.value)))  # type: ignore[attr-defined]


def thawed(code: SourceModel) -> Place | None:
    """The line that makes parameters trainable: by a plain True, or else by what may be one."""
    calls = [
        (file, call.lineno, given_to(call))
        for file, call in _calls(code)
        if name_of(call) == "requires_grad_"
    ]
    sets = [
        (file, node.lineno, [node.value])
        for file, node in _nodes(code)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" for t in node.targets)
    ]
    plain = [(file, line) for file, line, given in calls + sets if all(_is(True, g) for g in given)]
    return _only(iter(plain)) or _only(
        (file, line) for file, line, given in calls + sets if not any(_is(False, g) for g in given)
    )


def seeded_by_rank(code: SourceModel) -> Place | None:
    """The line that seeds torch's generator, itself or through a function of the user's, with something named after the rank.

    The first where one file has several: a model is drawn before data are. A generator of its own draws no model.
    """
    seeding = {SEEDS} | {
        node.name for _, node in _nodes(code) if isinstance(node, Function) and _hands_on_to_seed(node)
    }
    found = sorted(
        (file, call.lineno)
        for file, call in _calls(code)
        if (name_of(call) in seeding or SEEDS in ast.unparse(call.func))
        and not (isinstance(call.func, ast.Attribute) and "enerator" in ast.unparse(call.func.value))
        and any(map(depends_on_rank, given_to(call)))
    )
    return place(*found[0], None) if len({file for file, _ in found}) == 1 else None


def _hands_on_to_seed(function: Function) -> bool:
    """Whether it seeds with what it was given, as helpers do that seed several generators."""
    arguments = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    seeded = (call for call in calls_in(function) if name_of(call) == SEEDS)
    nodes = (n for call in seeded for given in given_to(call) for n in ast.walk(given))
    return any(isinstance(n, ast.Name) and n.id in arguments for n in nodes)


def _nodes(code: SourceModel) -> Iterator[tuple[str, ast.AST]]:
    return ((file.path, node) for file in code.kept for node in file.nodes)


def _calls(code: SourceModel) -> Iterator[tuple[str, ast.Call]]:
    return ((file.path, call) for file in code.kept for call in file.calls)


def _is(value: bool, node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _only(lines: Iterator[tuple[str, int]]) -> Place | None:
    found = list(lines)
    return place(*found[0], None) if len(found) == 1 else None
