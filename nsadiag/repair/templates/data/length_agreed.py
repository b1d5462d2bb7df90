"""Items whose number a function also asks for are as many on all ranks: the loop ends together, and what counts on its end does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.data.loops_end_together import COST, unwrapped
from nsadiag.repair.templates.template import COUNTED, Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module, first_line, with_helper
from nsadiag.source.model import name_of

NAME = "AsLongOnAllRanks"
HELPER = f'''class {NAME}:
    """Items of which every rank has as many as the rank with the fewest."""

    def __init__(self, items):
        import torch
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        fewest = torch.tensor(len(items), device=device)
        dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
        self.items, self.fewest = items, int(fewest)

    def __len__(self):
        return self.fewest

    def __iter__(self):
        yield from (item for _, item in zip(range(self.fewest), self.items))

    def __getattr__(self, name):
        return getattr(self.items, name)
'''
COUNTING = HELPER.replace(
    "        yield from",
    f'        print("{COUNTED}", self.fewest, len(self.items) - self.fewest, flush=True)\n        yield from',
)


def propose(module: Module) -> Iterator[Proposal]:
    """For loops over a name whose length the same function asks for, innermost first."""
    if module.binds(NAME):
        return
    for loop in module.around(ast.For):
        assert isinstance(loop, ast.For)
        items, function = unwrapped(loop.iter), module.function_of(loop)
        if not (
            isinstance(items, ast.Name)
            and isinstance(function, FUNCTIONS)
            and _is_measured(items.id, function)
        ):
            continue
        first = next((s for s in function.body if _reads(items.id, s)), None)
        if first is None:
            continue
        row = f"{' ' * first.col_offset}{items.id} = {NAME}({items.id})\n"
        at = first_line(first) - 1
        text = "".join([*module.rows[:at], row, *module.rows[at:]])
        yield Proposal(
            what=f"`{items.id}` of line {items.lineno} is as long on all ranks as on the one that has the fewest",
            text=with_helper(text, HELPER), line=items.lineno, cost=COST, counting=with_helper(text, COUNTING),
        )  # fmt: skip


def _is_measured(name: str, function: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call) and name_of(n) == "len" and [ast.unparse(a) for a in n.args] == [name]
        for n in ast.walk(function)
    )


def _reads(name: str, statement: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(statement)
    )


EXAMPLE = Example(
    line=6,
    before="""import torch


def train(model, loader, accumulator):
    for number, batch in enumerate(loader):
        model(batch).backward()
        if number + 1 == len(loader):
            accumulator.step()
""",
    after=f"""import torch


{HELPER}

def train(model, loader, accumulator):
    loader = {NAME}(loader)
    for number, batch in enumerate(loader):
        model(batch).backward()
        if number + 1 == len(loader):
            accumulator.step()
""",
)
TEMPLATE = Template(name="length agreed", propose=propose, example=EXAMPLE)
