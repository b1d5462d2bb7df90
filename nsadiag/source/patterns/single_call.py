"""The one line of the user's sources that does a certain thing; None where there is none, or several."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import (
    Function,
    SourceFile,
    SourceModel,
    calls_in,
    given_to,
    last_name,
    last_of_file,
    name_of,
    names_in,
    only,
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
    calls = code.nodes(ast.Call)
    return last_of_file((file, call.lineno) for file, call in calls if name_of(call) == function)


def only_where(code: SourceModel, is_it: Callable[[ast.Call], bool]) -> Place | None:
    """The line of the one call of which that is true."""
    return only((file, call.lineno) for file, call in code.nodes(ast.Call) if is_it(call))


def only_keyword(code: SourceModel, keyword: str) -> Place | None:
    """The line that gives an argument of that name: in the call itself, or in a dict that is unpacked into it."""
    given = [
        (file, k.value) for file, call in code.nodes(ast.Call) for k in call.keywords if k.arg == keyword
    ]
    for file, node in code.nodes(ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        given += [(file, v) for k, v in pairs if isinstance(k, ast.Constant) and k.value == keyword]
    return only((file, value.lineno) for file, value in given if not _is(None, value))


def only_assignment(code: SourceModel, attribute: str) -> Place | None:
    """The line that gives some object's attribute of that name a new value; `self.x = ...` is where it was made."""
    return only(
        (file, target.lineno)
        for file, node in code.nodes(ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == attribute
        if ast.unparse(target) != f"self.{attribute}"
    )


def last_assignment(code: SourceModel, name: str) -> Place | None:
    """The last line that gives a variable, or some object's attribute, of that name a new value; not `self.x = ...`."""
    return last_of_file(
        (file, node.lineno)
        for file, node in code.nodes(ast.expr)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
        if last_name(node) == name and ast.unparse(node) != f"self.{name}"
    )


def written_attribute(code: SourceModel, name: str) -> Place | None:
    """The one line that writes into some object's attribute of that name: in place, or by an assignment other than its first."""

    def is_in(node: ast.expr) -> bool:
        return any(last_name(n) == name for n in ast.walk(node))

    called = [
        (file, call.lineno)
        for file, call in code.nodes(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_") and is_in(call.func.value)
    ]
    stored = [
        (file, node.lineno)
        for file, node in code.nodes(ast.expr)
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store) and is_in(node)
    ]
    return only(called + stored)


def only_item_write(code: SourceModel, key: str) -> Place | None:
    """The line that gives the item of that key a new value, as `group["lr"] = rate` does."""
    return only(
        (file, node.lineno)
        for file, node in code.nodes(ast.Subscript)
        if isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == key
    )


def only_use(code: SourceModel, attribute: str) -> Place | None:
    """The line that uses an object's attribute of that name, other than to give it a value."""
    return only(
        (file, node.lineno)
        for file, node in code.nodes(ast.Attribute)
        if node.attr == attribute and isinstance(node.ctx, ast.Load)
    )


def cross_entropy_near(code: SourceModel, line: Place | None) -> Place | None:
    """The one line that calls cross_entropy within the function (or the top of the file) that holds a line."""
    file, calls = _cross_entropies_near(code, line)
    return only((file.path, call.lineno) for call in calls) if file else None


def target_near(code: SourceModel, line: Place | None) -> Place | None:
    """The last line before those calls that gives a new value to the one variable which all are given second."""
    file, calls = _cross_entropies_near(code, line)
    given_second = {ast.unparse(call.args[1]) for call in calls if len(call.args) > 1}
    if file is None or len(given_second) != 1 or any(len(call.args) < 2 for call in calls):
        return None
    node: ast.AST = calls[0].args[1]
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    stores = (n for n in file.all(ast.Name) if isinstance(n.ctx, ast.Store) and n.lineno <= calls[0].lineno)
    given = [n.lineno for n in stores if isinstance(node, ast.Name) and n.id == node.id]
    return place(file.path, max(given), None) if given else None


def given_first(code: SourceModel, line: Place | None) -> Place | None:
    """The last assignment of the variable that a call on that line is given first; the line where it is given no variable."""
    file = next((file for file in code.kept if line is not None and file.path == line.file), None)
    if file is None or line is None:
        return line
    names = {
        c.args[0].id
        for c in file.calls
        if c.lineno == line.line and c.args and isinstance(c.args[0], ast.Name)
    }
    made = [
        node.lineno
        for node in file.all(ast.Assign)
        if node.lineno <= line.line and any(isinstance(t, ast.Name) and t.id in names for t in node.targets)
    ]
    return place(file.path, max(made), None) if made else line


def condition_around(code: SourceModel, line: Place | None) -> Place | None:
    """The innermost `if` around a line that asks for more than whether something is None."""
    file = next((file for file in code.kept if line is not None and file.path == line.file), None)
    tests = [] if file is None or line is None else file.around(line.line, ast.If)
    asked = [
        node.lineno
        for node in tests
        if not any(isinstance(n, ast.Constant) and n.value is None for n in ast.walk(node.test))
    ]
    return place(file.path, max(asked), None) if file and asked else None


def factor_in_place(code: SourceModel) -> Place | None:
    """The last line that gives a value to the variable by which the one `x.mul_(variable)` multiplies, within its function."""
    found = [
        (file, call, call.args[-1])
        for file in code.kept
        for call in file.calls
        if name_of(call) in ("mul_", "_foreach_mul_") and call.args
    ]
    if len(found) != 1:
        return None
    file, call, factor = found[0]
    if not isinstance(factor, ast.Name):
        return None
    around = file.function_at(call.lineno)
    stores = (n for n in file.all(ast.Name) if isinstance(n.ctx, ast.Store) and n.id == factor.id)
    given = [n.lineno for n in stores if n.lineno <= call.lineno and file.function_at(n.lineno) is around]
    return place(file.path, max(given), None) if given else None


def _cross_entropies_near(code: SourceModel, line: Place | None) -> tuple[SourceFile | None, list[ast.Call]]:
    file = next((file for file in code.kept if line is not None and file.path == line.file), None)
    if file is None or line is None:
        return None, []
    around = file.function_at(line.line)
    calls = (call for call in file.calls if name_of(call) == "cross_entropy")
    return file, [call for call in calls if file.function_at(call.lineno) is around]


def scaled_loss(code: SourceModel) -> Place | None:
    """The line that multiplies a loss where a test on the rank says so, or by something named after the rank."""
    return only(
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
    calls = ((file, call) for file, call in code.nodes(ast.Call) if name_of(call) == "requires_grad_")
    sets = (
        (file, node) for file, node in code.nodes(ast.Assign) if any(map(_is_requires_grad, node.targets))
    )
    found = [
        *((file, call.lineno, given_to(call)) for file, call in calls),
        *((file, node.lineno, [node.value]) for file, node in sets),
    ]
    plain = only((file, line) for file, line, given in found if all(_is(True, g) for g in given))
    return plain or only((file, line) for file, line, given in found if not any(_is(False, g) for g in given))


def _is_requires_grad(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "requires_grad"


def seeded_by_rank(code: SourceModel) -> Place | None:
    """The line that seeds torch's generator, itself or through a function of the user's, with something named after the rank.

    The first where one file has several: a model is drawn before data are. A generator of its own draws no model.
    """
    found = sorted(
        (file, call.lineno) for file, call in _seeding(code) if any(map(depends_on_rank, given_to(call)))
    )
    return place(*found[0], None) if len({file for file, _ in found}) == 1 else None


def seeded_alike(code: SourceModel) -> Place | None:
    """The last line that seeds torch's generator with what is named after no rank, where none is."""
    calls = list(_seeding(code))
    own = [call for _, call in calls if any(map(depends_on_rank, given_to(call)))]
    inner = [
        call for _, call in calls if not any(isinstance(given, ast.Constant) for given in given_to(call))
    ]
    outer = [(file, call.lineno) for file, call in calls if call not in inner]
    return None if own else last_of_file(outer or ((file, call.lineno) for file, call in calls))


def _seeding(code: SourceModel) -> Iterator[tuple[str, ast.Call]]:
    functions = (function for file in code.kept for function in file.functions)
    seeding = {SEEDS, *(function.name for function in functions if _shares_with_seed(function))}
    for file, call in code.nodes(ast.Call):
        if (name_of(call) in seeding or SEEDS in ast.unparse(call.func)) and not (
            isinstance(call.func, ast.Attribute) and "enerator" in ast.unparse(call.func.value)
        ):
            yield file, call


def _shares_with_seed(function: Function) -> bool:
    """Whether it seeds with what it was given, as helpers do that seed several generators."""
    arguments = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    seeded = (call for call in calls_in(function) if name_of(call) == SEEDS)
    return any(names_in(*given_to(call)) & arguments for call in seeded)


def _is(value: object, node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def only_clearing(code: SourceModel) -> Place | None:
    """The line that clears gradients: it gives None to `grad`, or calls `zero_grad` where nothing does that."""
    cleared = (
        (file, target.lineno)
        for file, node in code.nodes(ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == "grad" and _is(None, node.value)
    )
    return only(cleared) or only_call(code, "zero_grad")
