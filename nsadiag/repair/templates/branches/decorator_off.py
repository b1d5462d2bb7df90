"""A function that a decorator lets one rank into is run by all ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module
from nsadiag.source.model import last_name
from nsadiag.source.vocabulary import admitted_rank

HARMLESS = ("property", "staticmethod", "classmethod", "no_grad", "inference_mode", "record", "cache")


def propose(module: Module) -> Iterator[Proposal]:
    """At functions around the lines and those that are called there: decorators that are known to let one rank in first."""
    functions = [n for n in ast.walk(module.tree) if isinstance(n, FUNCTIONS) and n.decorator_list]
    own = {n.name for n in ast.walk(module.tree) if isinstance(n, FUNCTIONS) and _asks_for_rank(module, n)}
    for known in (True, False):
        for function in functions:
            for decorator in function.decorator_list:
                name = last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
                if name in HARMLESS or known != (name in own or admitted_rank(name) is not None):
                    continue
                rows = module.rows
                text = "".join(
                    rows[: decorator.lineno - 1] + rows[decorator.end_lineno or decorator.lineno :]
                )
                what = f"all ranks run {function.name}, without @{name} in line {decorator.lineno}"
                inside = (n for n in module.lines if function.lineno <= n <= (function.end_lineno or 0))
                yield Proposal(what=what, text=text, line=function.lineno, branch=next(inside, 0))


def _asks_for_rank(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    tests = (n.test for n in ast.walk(function) if isinstance(n, ast.If))
    return any(module.provenance(test) == "rank" for test in tests)


EXAMPLE = Example(
    line=7,
    before="""import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_only


@rank_zero_only
def publish(score):
    dist.all_reduce(score)
    print(score)
""",
    after="""import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_only


def publish(score):
    dist.all_reduce(score)
    print(score)
""",
)
TEMPLATE = Template(name="decorator off", propose=propose, example=EXAMPLE)
