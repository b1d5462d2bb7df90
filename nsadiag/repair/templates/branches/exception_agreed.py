"""A batch that one rank cannot prepare is left out by all: they agree on the exception before the next call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper

NAME = "raised_by_all"
HELPER = f'''def {NAME}(make, kind):
    """What the function gives; where it raises on one rank, all raise."""
    import torch
    import torch.distributed as dist

    made = []
    try:
        made.append(make())
    finally:
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        failed = torch.tensor(int(not made), device=device)
        dist.all_reduce(failed, op=dist.ReduceOp.MAX)
        if made and failed.item():
            raise kind("on another rank")
    return made[0]
'''
COST = "what one rank cannot use is left out on all ranks"


def propose(module: Module) -> Iterator[Proposal]:
    """At a `try` whose handler goes on: each call that may be what fails, the innermost first."""
    if module.binds(NAME):
        return
    for node in module.around(ast.Try):
        assert isinstance(node, ast.Try)
        handler = next(
            (h for h in node.handlers if not any(isinstance(n, ast.Raise) for n in ast.walk(h))), None
        )
        if handler is None:
            continue
        kind = handler.type.elts[0] if isinstance(handler.type, ast.Tuple) else handler.type
        named = module.source(kind) if kind is not None else "RuntimeError"
        for call in _calls(node.body):
            text = module.replaced(call, f"{NAME}(lambda: {module.source(call)}, {named})")
            what = f"agree on the exception of `{module.source(call)[:60]}` in line {call.lineno}"
            yield Proposal(what=what, text=with_helper(text, HELPER), line=call.lineno, cost=COST)


def _calls(body: list[ast.stmt]) -> list[ast.Call]:
    """Calls whose results are assigned or given to others, in the order in which they are made."""
    found = []
    for statement in body:
        if isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Call):
            found += [a for a in statement.value.args if isinstance(a, ast.Call)]
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            found.append(statement.value)
    return found


EXAMPLE = Example(
    line=7,
    before="""import torch


def epoch(model, batches):
    skipped = 0
    for batch in batches:
        try:
            train_on(model, cropped(batch))
        except ValueError:
            skipped += 1
""",
    after=f"""import torch


{HELPER}

def epoch(model, batches):
    skipped = 0
    for batch in batches:
        try:
            train_on(model, {NAME}(lambda: cropped(batch), ValueError))
        except ValueError:
            skipped += 1
""",
)
TEMPLATE = Template(name="exception agreed", propose=propose, example=EXAMPLE)
