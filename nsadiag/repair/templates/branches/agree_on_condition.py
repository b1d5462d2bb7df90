"""A condition on a rank's own data becomes one answer for all ranks: any of them says so, all do, or rank 0 does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper

NAME = "agree_on_all_ranks"
HEAD = f'''def {NAME}(flag):
    """{{said}}"""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return bool(flag)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    answer = torch.tensor(int(bool(flag)), device=device)
'''
HOW = {
    "any": ("Whether any rank says so.", "    dist.all_reduce(answer, op=dist.ReduceOp.MAX)"),
    "all": ("Whether all ranks say so.", "    dist.all_reduce(answer, op=dist.ReduceOp.MIN)"),
    "rank 0": ("Whether rank 0 says so.", "    dist.broadcast(answer, src=0)"),
}
LEFT_BY_ALL = "all ranks leave as soon as one does"
LEFT_OUT_BY_ALL = "a round that one rank leaves out is left out by all"
LEAVES = (ast.Break, ast.Return, ast.Continue, ast.Raise)


def propose(module: Module) -> Iterator[Proposal]:
    """At the conditions around the lines, innermost first, and at the others of their functions."""
    if module.binds(NAME):
        return
    for node in module.around(ast.If, ast.While, ast.IfExp):
        assert isinstance(node, ast.If | ast.While | ast.IfExp)
        if module.provenance(node.test) in ("rank", "uniform"):
            continue
        for how in _ways(node):
            text = module.replaced(node.test, f"{NAME}({module.source(node.test)})")
            said, line = HOW[how]
            helper = f"{HEAD.format(said=said)}{line}\n    return bool(answer.item())\n"
            what = f"agree on the condition in line {node.lineno}: {how}"
            cost = _cost(node) if how == "any" else ""
            yield Proposal(what=what, text=with_helper(text, helper), line=node.test.lineno, cost=cost)


def _ways(node: ast.If | ast.While | ast.IfExp) -> tuple[str, ...]:
    """The likeliest first: all leave as soon as one would, and what is done is done by all."""
    if isinstance(node, ast.While):
        return "all", "any"
    if _leaves(node):
        return "any", "all"
    return "any", "rank 0", "all"


def _cost(node: ast.If | ast.While | ast.IfExp) -> str:
    if not _leaves(node):
        return ""
    assert isinstance(node, ast.If)
    return LEFT_OUT_BY_ALL if any(isinstance(n, ast.Continue) for n in node.body) else LEFT_BY_ALL


def _leaves(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and any(isinstance(n, LEAVES) for n in node.body)


EXAMPLE = Example(
    line=7,
    before="""import torch


def train(model, loader, stopper):
    for batch in loader:
        loss = step(model, batch)
        if stopper.done(loss):
            break
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


def train(model, loader, stopper):
    for batch in loader:
        loss = step(model, batch)
        if agree_on_all_ranks(stopper.done(loss)):
            break
''',
)
TEMPLATE = Template(name="agree on a condition", propose=propose, example=EXAMPLE)
