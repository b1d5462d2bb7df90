"""Tensors of other sizes on each rank are gathered: padded to the largest, and cut again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper
from nsadiag.source.model import name_of

NAME = "all_gather_of_any_size"
HELPER = f'''def {NAME}(tensors, tensor, group=None):
    """Puts each rank's tensor into the list, whatever its sizes are; all have as many dimensions."""
    import torch
    import torch.distributed as dist

    sizes = torch.tensor(tensor.shape, device=tensor.device)
    everyone = [torch.empty_like(sizes) for _ in tensors]
    dist.all_gather(everyone, sizes, group=group)
    padded = tensor.new_zeros(torch.stack(everyone).amax(0).tolist())
    padded[tuple(map(slice, tensor.shape))] = tensor
    gathered = [torch.empty_like(padded) for _ in tensors]
    dist.all_gather(gathered, padded, group=group)
    tensors[:] = [t[tuple(map(slice, size.tolist()))] for t, size in zip(gathered, everyone)]
'''


def propose(module: Module) -> Iterator[Proposal]:
    """At calls of all_gather with a list, those at the lines first."""
    if module.binds(NAME):
        return
    for call in dict.fromkeys([*module.at_lines(ast.Call), *module.around(ast.Call)]):
        assert isinstance(call, ast.Call)
        if name_of(call) != "all_gather" or not isinstance(module.parents[call], ast.Expr):
            continue
        text = module.replaced(call.func, NAME)
        what = f"tensors of any size are gathered in line {call.lineno}"
        yield Proposal(what=what, text=with_helper(text, HELPER), line=call.lineno)


EXAMPLE = Example(
    line=6,
    before="""import torch
import torch.distributed as dist


def collect(gathered, scores):
    dist.all_gather(gathered, scores)
    return torch.cat(gathered)
""",
    after=f"""import torch
import torch.distributed as dist


{HELPER}

def collect(gathered, scores):
    {NAME}(gathered, scores)
    return torch.cat(gathered)
""",
)
TEMPLATE = Template(name="gathered of any size", propose=propose, example=EXAMPLE)
