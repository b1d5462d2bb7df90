"""A flag that one rank sets is set on all: they agree on it behind the branch of that rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.branches.agree_on_condition import HEAD, HOW, LEFT_BY_ALL, NAME
from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper


def propose(module: Module) -> Iterator[Proposal]:
    """At branches on the rank, around the lines, in which a flag becomes true."""
    if module.binds(NAME):
        return
    said, line = HOW["any"]
    helper = f"{HEAD.format(said=said)}{line}\n    return bool(answer.item())\n"
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        if node.orelse or module.provenance(node.test) != "rank":
            continue
        for flag in _flags(module, node):
            row = f"{flag} = {NAME}({flag})"
            text = module.edited((node, module.indented(node, module.source(node), row)))
            what = f"all ranks have `{flag}` behind line {node.end_lineno}, where one has set it"
            yield Proposal(what=what, text=with_helper(text, helper), line=node.lineno, cost=LEFT_BY_ALL)


def _flags(module: Module, node: ast.If) -> list[str]:
    """Flags that the branch sets to true, and that are there without it as well."""
    found: dict[str, None] = {}
    for each in [n for s in node.body for n in ast.walk(s) if isinstance(n, ast.Assign)]:
        target, value = each.targets[0], each.value
        is_known = isinstance(target, ast.Attribute) or (
            isinstance(target, ast.Name) and _is_bound(module, target, node)
        )
        if is_known and isinstance(value, ast.Constant) and value.value is True:
            found[ast.unparse(target)] = None
    return list(found)


def _is_bound(module: Module, name: ast.Name, node: ast.If) -> bool:
    """Whether the function has bound it above the branch."""
    return any(
        isinstance(n, ast.Name)
        and n.id == name.id
        and isinstance(n.ctx, ast.Store)
        and n.lineno < node.lineno
        for n in ast.walk(module.function_of(node))
    )


EXAMPLE = Example(
    line=6,
    before="""import torch


class Stopper:
    def after_batch(self, trainer, inbox):
        if trainer.global_rank == 0:
            if inbox.poll() == "stop":
                trainer.should_stop = True
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


class Stopper:
    def after_batch(self, trainer, inbox):
        if trainer.global_rank == 0:
            if inbox.poll() == "stop":
                trainer.should_stop = True
        trainer.should_stop = agree_on_all_ranks(trainer.should_stop)
''',
)
TEMPLATE = Template(name="flag for all", propose=propose, example=EXAMPLE)
