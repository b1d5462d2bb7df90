"""A flag that each rank computes for itself, and that branches ask later, is what any of them says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.branches.agree_on_condition import HEAD, HOW, NAME
from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper


def propose(module: Module) -> Iterator[Proposal]:
    """At assignments at the lines whose name a branch of the module asks alone; then at those of the conditions around the lines."""
    if module.binds(NAME):
        return
    asked = set()
    for branch in [n for n in ast.walk(module.tree) if isinstance(n, ast.If | ast.IfExp | ast.While)]:
        test = branch.test.operand if isinstance(branch.test, ast.UnaryOp) else branch.test
        if isinstance(test, ast.Name | ast.Attribute):
            asked.add(ast.unparse(test))
    for node in dict.fromkeys([*module.at_lines(ast.Assign), *module.around(ast.Assign)]):
        assert isinstance(node, ast.Assign)
        if ast.unparse(node.targets[0]) not in asked or isinstance(node.value, ast.Constant):
            continue
        if module.provenance(node.value) in ("rank", "uniform"):
            continue
        for how in ("any", "all"):
            said, line = HOW[how]
            helper = f"{HEAD.format(said=said)}{line}\n    return bool(answer.item())\n"
            text = module.replaced(node.value, f"{NAME}({module.source(node.value)})")
            what = f"agree on `{ast.unparse(node.targets[0])}` in line {node.lineno}: {how}"
            yield Proposal(what=what, text=with_helper(text, helper), line=node.lineno)


EXAMPLE = Example(
    line=6,
    before="""import torch


def train(model, batches, counter):
    for batch in batches:
        last = counter.is_full(batch)
        if last:
            step(model)
""",
    after='''import torch


def agree_on_all_ranks(flag):
    """Whether any rank says so."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return bool(flag)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    answer = torch.tensor(int(bool(flag)), device=device)
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer.item())


def train(model, batches, counter):
    for batch in batches:
        last = agree_on_all_ranks(counter.is_full(batch))
        if last:
            step(model)
''',
)
TEMPLATE = Template(name="agree on a flag", propose=propose, example=EXAMPLE)
