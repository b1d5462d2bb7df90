"""Workers of a data loader that are seeded by their number alone, in a loader whose data set draws random numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import (
    Function,
    SourceFile,
    SourceModel,
    calls_in,
    given_to,
    last_name,
    name_of,
    names_in,
    place,
)

Seeding = Function | ast.Lambda
DRAWS = re.compile(r"rand|normal|uniform|choice|shuffle|bernoulli")


def seeded_by_number(code: SourceModel) -> Place | None:
    """The line that seeds, if all that it is made of is the worker's number and constants: on every rank and in every epoch alike."""
    for file in code.kept:
        if not any(_draws(function) for function in file.functions if function.name == "__getitem__"):
            continue
        for given in (k.value for call in file.calls for k in call.keywords if k.arg == "worker_init_fn"):
            for function in _functions(file, given):
                seeds = [call for call in calls_in(function) if "seed" in name_of(call)]
                if seeds and all(_knows_number_alone(file, function, call) for call in seeds):
                    return place(file.path, seeds[0].lineno, None)
    return None


def _draws(function: Function) -> bool:
    return any(DRAWS.search(ast.unparse(call.func)) for call in calls_in(function))


def _functions(file: SourceFile, given: ast.expr) -> Iterator[Seeding]:
    """The functions that a name, or a lambda in its place, stands for."""
    name = last_name(given)
    if isinstance(given, ast.Lambda):
        yield given
    yield from (function for function in file.functions if function.name == name)
    for node in file.all(ast.Assign):
        if isinstance(node.value, ast.Lambda) and any(last_name(target) == name for target in node.targets):
            yield node.value


def _knows_number_alone(file: SourceFile, function: Seeding, seeding: ast.Call) -> bool:
    own = {argument.arg for argument in function.args.args}
    given = given_to(seeding)
    calls = any(isinstance(n, ast.Call | ast.Attribute) for each in given for n in ast.walk(each))
    return bool(given) and not calls and all(n in own or _is_constant(file, n) for n in names_in(*given))


def _is_constant(file: SourceFile, name: str) -> bool:
    """Whether all that is ever assigned to it is one number as it is written there."""
    stored = sum(n.id == name and isinstance(n.ctx, ast.Store) for n in file.all(ast.Name))
    given = [node.value for node in file.all(ast.Assign) if any(last_name(t) == name for t in node.targets)]
    return stored == len(given) == 1 and isinstance(given[0], ast.Constant)
