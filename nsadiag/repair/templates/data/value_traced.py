"""A value that each rank finds for itself, behind what calls are given and models are built with, is rank 0's on all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from nsadiag.repair.templates.data.value_of_rank_0 import HELPER, NAME, says_who, shared
from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module, with_helper
from nsadiag.source.model import last_name
from nsadiag.source.vocabulary import is_rank, is_rank_call, is_rank_variable

MOST_STEPS = 24
MOST = 6


def propose(module: Module) -> Iterator[Proposal]:
    """At the values behind the statements at the lines: those that are found by the rank first, the nearest first."""
    if module.binds(NAME):
        return
    found = [
        value for value in islice(_behind(module), MOST_STEPS) if not _is_plain(value) and not says_who(value)
    ]
    for value in sorted(found, key=lambda value: not _by_rank(value))[:MOST]:
        text = shared(module, value)
        what = f"all ranks take rank 0's `{module.source(value).splitlines()[0][:60]}`, found in line {value.lineno}"
        yield Proposal(
            what=what, text=with_helper(text, HELPER), line=value.lineno, is_guess=not _by_rank(value)
        )


def _is_plain(value: ast.expr) -> bool:
    """A name that only stands for another value, or what is the same on all ranks."""
    return isinstance(value, ast.Constant | ast.Lambda | ast.Name | ast.Attribute)


def _by_rank(value: ast.expr) -> bool:
    return any(
        (isinstance(n, ast.Name | ast.Attribute) and is_rank(last_name(n)))
        or (isinstance(n, ast.Call) and is_rank_call(last_name(n.func)))
        or (isinstance(n, ast.Constant) and isinstance(n.value, str) and is_rank_variable(n.value))
        for n in ast.walk(value)
    )


def _behind(module: Module) -> Iterator[ast.expr]:
    """The values of the names that the statements at the lines read, and of those that these read in turn, breadth first."""
    pending: list[tuple[ast.AST, ast.AST]] = [(n, module.function_of(n)) for n in module.at_lines(ast.expr)]
    seen: set[tuple[str, ast.AST]] = set()
    while pending:
        node, function = pending.pop(0)
        for name in _names(node):
            if (name, function) in seen:
                continue
            seen.add((name, function))
            for value in (*_assigned(module, name, function), *_given(module, name, function)):
                yield value
                pending.append((value, module.function_of(value)))


def _names(node: ast.AST) -> Iterator[str]:
    """Names, and attributes of self by their text."""
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            yield n.id
        elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self":
            yield ast.unparse(n)


def _assigned(module: Module, name: str, function: ast.AST) -> Iterator[ast.expr]:
    """In the function, else in the module; an attribute of self in any method."""
    of_self = name.startswith("self.")
    holder = module.tree if of_self or name not in _bound(function) else function
    for node in ast.walk(holder):
        if isinstance(node, ast.Assign) and (of_self or module.function_of(node) is holder):
            yield from (value for target, value in _pairs(node) if ast.unparse(target) == name)


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target with its value, also of `a, b = c, d`."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _bound(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _given(module: Module, name: str, function: ast.AST) -> Iterator[ast.expr]:
    """The arguments that calls of the function give to its parameter of that name."""
    if not isinstance(function, FUNCTIONS):
        return
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    owner = module.parents.get(function)
    called = function.name
    if isinstance(owner, ast.ClassDef):
        parameters = parameters[1:]
        called = owner.name if function.name == "__init__" else function.name
    if name not in parameters:
        return
    place = parameters.index(name)
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and last_name(call.func) == called:
            yield from (k.value for k in call.keywords if k.arg == name)
            if place < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args):
                yield call.args[place]


EXAMPLE = Example(
    line=6,
    before="""import torch.distributed as dist


def share(rank, tensor):
    kind = kind_of(rank)
    dist.all_reduce(tensor.to(kind))
""",
    after=f"""import torch.distributed as dist


{HELPER}

def share(rank, tensor):
    kind = {NAME}(kind_of(rank))
    dist.all_reduce(tensor.to(kind))
""",
)
CLASSES = frozenset({"model_structure_mismatch", "collective_args_mismatch", "collective_order_mismatch"})
TEMPLATE = Template(name="value agreed at its source", propose=propose, example=EXAMPLE, classes=CLASSES)
