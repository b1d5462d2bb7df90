"""A function made in a loop keeps the value that the loop had then, not the last one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module


def propose(module: Module) -> Iterator[Proposal]:
    """At lambdas and functions inside loops and comprehensions that read a name of the loop."""
    for loop in [n for n in ast.walk(module.tree) if isinstance(n, ast.For | ast.ListComp | ast.DictComp)]:
        targets = [loop.target] if isinstance(loop, ast.For) else [g.target for g in loop.generators]
        bound = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        if isinstance(loop, ast.For):
            bound |= {
                n.id
                for s in loop.body
                for n in ast.walk(s)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
        for function in [n for n in ast.walk(loop) if isinstance(n, ast.Lambda | FUNCTIONS)]:
            free = _read(function) & bound
            if not free or function.args.vararg or function.args.kwarg or function.args.kwonlyargs:
                continue
            kept = ", ".join(f"{name}={name}" for name in sorted(free))
            given = ast.unparse(function.args)
            arguments = ", ".join(filter(None, (given, kept)))
            what = f"the function of line {function.lineno} keeps {', '.join(sorted(free))} of its turn"
            yield Proposal(what=what, text=_with(module, function, arguments), line=function.lineno)


def _read(function: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    body = [function.body] if isinstance(function, ast.Lambda) else function.body
    names = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Name)]
    own = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for a in function.args.args}
    return {n.id for n in names} - own


def _with(
    module: Module, function: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef, arguments: str
) -> str:
    if isinstance(function, ast.Lambda):
        return module.replaced(function, f"lambda {arguments}: {module.source(function.body)}")
    rows = module.rows
    end = function.body[0].lineno - 1
    kind = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    head = f"{' ' * function.col_offset}{kind} {function.name}({arguments}){returns}:\n"
    return "".join([*rows[: function.lineno - 1], head, *rows[end:]])


EXAMPLE = Example(
    line=3,
    before="""def register(parameters, scales):
    for number, parameter in enumerate(parameters):
        parameter.register_hook(lambda grad: grad * scales[number])
""",
    after="""def register(parameters, scales):
    for number, parameter in enumerate(parameters):
        parameter.register_hook(lambda grad, number=number: grad * scales[number])
""",
)
TEMPLATE = Template(name="bound early", propose=propose, example=EXAMPLE)
