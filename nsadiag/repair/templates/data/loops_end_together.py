"""A loop over a rank's own data ends on all ranks together: with the shortest, or with the longest, or by DDP's join."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import COUNTED, Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module, with_helper
from nsadiag.source.model import name_of

NAME = "as_many_as_all_have"
HELPER = f'''def {NAME}(items, group=None):
    """The items, as many as the rank with the fewest has."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    end, source = object(), iter(items)
    while True:
        item = next(source, end)
        ended = torch.tensor(int(item is end), device=device)
        dist.all_reduce(ended, op=dist.ReduceOp.MAX, group=group)
        if ended.item():
            return
        yield item
'''
MOST_COUNTED = 100_000
# For one trial: what is left is gone through, and counted.
COUNTING = HELPER.replace(
    "            return\n",
    f"""            left = int(item is not end) + sum(1 for _ in zip(range({MOST_COUNTED}), source))
            print("{COUNTED}", taken, left, flush=True)
            return
        taken += 1
""",
).replace("    while True:\n", "    taken = 0\n    while True:\n")
COST = "batches that only some ranks have are left out"
LONGEST = "as_many_as_any_has"
PADDED = f'''def {LONGEST}(items, group=None):
    """The items, as many as the rank with the most has: others repeat their last one."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    end, source = object(), iter(items)
    item = end
    while True:
        following = next(source, end)
        ended = torch.tensor(int(following is end), device=device)
        dist.all_reduce(ended, op=dist.ReduceOp.MIN, group=group)
        if ended.item():
            return
        item = item if following is end else following
        yield item
'''
PADDED_COST = "ranks that have fewer batches repeat their last one"
JOINED_COST = "ranks that have fewer batches answer the others' reductions with zeros"
WRAPPERS = ("enumerate", "tqdm")
WRAPS = ("DistributedDataParallel", "DDP")


def propose(module: Module) -> Iterator[Proposal]:
    """At the loops around the lines, innermost first, and at comprehensions there; for all ranks, then for a group that is in reach."""
    if module.binds(NAME):
        return
    for node in dict.fromkeys([*module.at_lines(ast.comprehension), *module.around(ast.For)]):
        assert isinstance(node, ast.For | ast.comprehension)
        items = unwrapped(node.iter)
        if _is_counted(items, module):
            continue
        for group in ("", *_groups(module, items)):
            given = ", ".join(filter(None, (module.source(items), group)))
            text = module.replaced(items, f"{NAME}({given})")
            what = f"the loop of line {items.lineno} ends on all ranks{f' of {group}' if group else ''} with the shortest"
            yield Proposal(
                what=what, text=with_helper(text, HELPER), line=items.lineno, cost=COST,
                counting=with_helper(text, COUNTING),
            )  # fmt: skip

    yield from _longest(module)
    yield from _joined(module)


def _longest(module: Module) -> Iterator[Proposal]:
    for node in module.around(ast.For)[:1]:
        assert isinstance(node, ast.For)
        items = unwrapped(node.iter)
        if not _is_counted(items, module) and not module.binds(LONGEST):
            text = with_helper(module.replaced(items, f"{LONGEST}({module.source(items)})"), PADDED)
            what = f"the loop of line {items.lineno} ends on all ranks with the longest"
            yield Proposal(what=what, text=text, line=items.lineno, cost=PADDED_COST)


def _joined(module: Module) -> Iterator[Proposal]:
    """At a loop that calls a model that DDP wraps."""
    wrapped = {
        ast.unparse(n.targets[0])
        for n in ast.walk(module.tree)
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and name_of(n.value) in WRAPS
    }
    for node in module.around(ast.For)[:1]:
        used = {ast.unparse(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)} & wrapped
        for model in sorted(used):
            assert isinstance(node, ast.For)
            rows = module.source(node).splitlines()
            body = [rows[0], *(row[node.col_offset :] for row in rows[1:])]
            lines = (f"with {model}.join():", *(f"    {row}" if row.strip() else "" for row in body))
            text = module.edited((node, module.indented(node, *lines)))
            what = f"{model} is joined around the loop of line {node.lineno}"
            yield Proposal(what=what, text=text, line=node.lineno, cost=JOINED_COST)


def unwrapped(items: ast.expr) -> ast.expr:
    """The items of a loop, without a function around them that counts or shows its progress."""
    while isinstance(items, ast.Call) and name_of(items) in WRAPPERS and items.args:
        items = items.args[0]
    return items


def _is_counted(items: ast.expr, module: Module) -> bool:
    """Whether it is a number of rounds that all ranks have, by the text alone."""
    return (
        isinstance(items, ast.Call)
        and name_of(items) == "range"
        and all(module.provenance(argument) == "uniform" for argument in items.args)
    )


def _groups(module: Module, node: ast.AST) -> list[str]:
    """Groups that calls of the same function are given by a name."""
    function = module.function_of(node)
    if not isinstance(function, FUNCTIONS):
        return []
    keywords = [k for n in ast.walk(function) if isinstance(n, ast.Call) for k in n.keywords]
    named = (k.value for k in keywords if k.arg in ("group", "process_group"))
    return list(dict.fromkeys(ast.unparse(v) for v in named if isinstance(v, ast.Name | ast.Attribute)))


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
