"""Ranks accumulate gradients up to the same border: what ends `no_sync` by a rank's own data is agreed on by all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.branches.agree_on_condition import HEAD, HOW, NAME
from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module, with_helper
from nsadiag.source.model import name_of


def propose(module: Module) -> Iterator[Proposal]:
    """At functions that a branch around `no_sync` asks; where they end on one rank they end on all, or the reverse."""
    if module.binds(NAME):
        return
    asked = {
        name_of(call)
        for node in ast.walk(module.tree)
        if _chooses_no_sync(module, node)
        for call in ast.walk(node.test)  # type: ignore[attr-defined]
        if isinstance(call, ast.Call)
    }
    for function in [n for n in ast.walk(module.tree) if isinstance(n, FUNCTIONS) and n.name in asked]:
        last = function.body[-1]
        if not isinstance(last, ast.Return) or last.value is None or len(_returns(function)) != 1:
            continue
        if module.provenance(last.value) in ("rank", "uniform"):
            continue
        for how in ("any", "all"):
            said, line = HOW[how]
            helper = f"{HEAD.format(said=said)}{line}\n    return bool(answer.item())\n"
            text = module.replaced(last.value, f"{NAME}({module.source(last.value)})")
            what = f"agree on the border of no_sync, `{function.name}` in line {function.lineno}: {how}"
            yield Proposal(what=what, text=with_helper(text, helper), line=last.lineno)


def _chooses_no_sync(module: Module, node: ast.AST) -> bool:
    """Whether it is a branch with `no_sync` on one side: in it, or behind one that leaves."""
    if not isinstance(node, ast.If | ast.IfExp):
        return False
    if _names_no_sync(node):
        return True
    leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return)
    return leaves and any(_names_no_sync(s) for s in module.body_of(node) if s.lineno > node.lineno)  # type: ignore[arg-type]


def _names_no_sync(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "no_sync" for n in ast.walk(node))


def _returns(function: ast.AST) -> list[ast.Return]:
    return [n for n in ast.walk(function) if isinstance(n, ast.Return)]


EXAMPLE = Example(
    line=5,
    before="""from contextlib import nullcontext


class Accumulator:
    def is_border(self, index):
        return index % 4 == 3 or index + 1 == len(self.loader)

    def context(self, index):
        return nullcontext() if self.is_border(index) else self.model.no_sync()
""",
    after='''from contextlib import nullcontext


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


class Accumulator:
    def is_border(self, index):
        return agree_on_all_ranks(index % 4 == 3 or index + 1 == len(self.loader))

    def context(self, index):
        return nullcontext() if self.is_border(index) else self.model.no_sync()
''',
)
TEMPLATE = Template(name="borders of no_sync", propose=propose, example=EXAMPLE)
