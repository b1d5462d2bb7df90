"""Parameters that have a gradient on one rank have one on all: zeros, where a rank did not come to use them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper

NAME = "with_gradients_on_any_rank"
HELPER = f'''def {NAME}(parameters):
    """The parameters, each with a gradient where any rank has one: zeros, where there was none."""
    import torch
    import torch.distributed as dist

    parameters = list(parameters)
    held = [p[-1] if isinstance(p, tuple) else p for p in parameters]
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    used = torch.tensor([int(p.grad is not None) for p in held], device=device)
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    for parameter, is_used in zip(held, used.tolist()):
        if is_used and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return parameters
'''
LOOPS = (ast.For, ast.ListComp, ast.GeneratorExp)


def propose(module: Module) -> Iterator[Proposal]:
    """At loops and comprehensions that leave out parameters without a gradient."""
    if module.binds(NAME):
        return
    for node in module.around(*LOOPS):
        target, items = _of(node)
        names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        if any(_asks_for_gradient(n, names) for n in ast.walk(node)):
            text = module.replaced(items, f"{NAME}({module.source(items)})")
            what = f"what has a gradient on any rank has one on all in line {items.lineno}"
            yield Proposal(what=what, text=with_helper(text, HELPER), line=items.lineno)


def _of(node: ast.AST) -> tuple[ast.expr, ast.expr]:
    made = node if isinstance(node, ast.For) else node.generators[0]  # type: ignore[attr-defined]
    return made.target, made.iter


def _asks_for_gradient(node: ast.AST, names: set[str]) -> bool:
    """Whether it compares the gradient of one of these with None."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Is | ast.IsNot):
        return False
    left = node.left
    of = left.value if isinstance(left, ast.Attribute) and left.attr == "grad" else None
    return isinstance(of, ast.Name) and of.id in names


EXAMPLE = Example(
    line=5,
    before="""import torch.distributed as dist


def average(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
""",
    after=f"""import torch.distributed as dist


{HELPER}

def average(model):
    for parameter in {NAME}(model.parameters()):
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
""",
)
TEMPLATE = Template(name="gradients on any rank", propose=propose, example=EXAMPLE)
