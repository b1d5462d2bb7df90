"""A loop over a rank's own data ends on all ranks with the shortest of them: further batches are left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper
from nsadiag.source.model import name_of

NAME = "as_many_as_all_have"
HELPER = f'''def {NAME}(items):
    """The items, as many as the rank with the fewest has."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    end, source = object(), iter(items)
    while True:
        item = next(source, end)
        ended = torch.tensor(int(item is end), device=device)
        dist.all_reduce(ended, op=dist.ReduceOp.MAX)
        if ended.item():
            return
        yield item
'''
COST = "batches that only some ranks have are left out"


def propose(module: Module) -> Iterator[Proposal]:
    """At the loops around the lines, innermost first."""
    if module.binds(NAME):
        return
    for node in module.around(ast.For):
        assert isinstance(node, ast.For)
        items = node.iter
        while isinstance(items, ast.Call) and name_of(items) in ("enumerate", "tqdm") and items.args:
            items = items.args[0]
        if _is_counted(items):
            continue
        text = module.replaced(items, f"{NAME}({module.source(items)})")
        what = f"the loop of line {node.lineno} ends on all ranks with the shortest"
        yield Proposal(what=what, text=with_helper(text, HELPER), cost=COST)


def _is_counted(items: ast.expr) -> bool:
    """Whether it is a number of rounds that the text alone gives."""
    return (
        isinstance(items, ast.Call)
        and name_of(items) == "range"
        and all(isinstance(argument, ast.Constant) for argument in items.args)
    )


EXAMPLE = Example(
    line=6,
    before="""import torch


def train(model, loader):
    for number, batch in enumerate(loader):
        model(batch).backward()
""",
    after=f"""import torch


{HELPER}

def train(model, loader):
    for number, batch in enumerate({NAME}(loader)):
        model(batch).backward()
""",
)
TEMPLATE = Template(name="loops that end together", propose=propose, example=EXAMPLE)
