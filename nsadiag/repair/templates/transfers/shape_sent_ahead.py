"""A receiver learns the shape of what comes: the sender sends it ahead."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper
from nsadiag.source.model import name_of

SEND, RECEIVE = "send_with_shape", "receive_of_any_shape"
HELPER = f'''def {SEND}(tensor, *args, **kwargs):
    """Sends the shape, then the tensor."""
    import torch
    import torch.distributed as dist

    shape = torch.tensor([tensor.dim(), *tensor.shape, *[0] * (8 - tensor.dim())], device=tensor.device)
    dist.send(shape, *args, **kwargs)
    dist.send(tensor, *args, **kwargs)


def {RECEIVE}(like, *args, **kwargs):
    """A tensor of the shape that is sent ahead, with the type and device of another one."""
    import torch
    import torch.distributed as dist

    shape = torch.empty(9, dtype=torch.long, device=like.device)
    dist.recv(shape, *args, **kwargs)
    tensor = like.new_empty(shape[1 : 1 + shape[0]].tolist())
    dist.recv(tensor, *args, **kwargs)
    return tensor
'''


def propose(module: Module) -> Iterator[Proposal]:
    """For all sends and receives of the module: a pair cannot be changed by one of its sides alone."""
    if module.binds(SEND):
        return
    edits: list[tuple[ast.AST, str]] = []
    found = set()
    for node in [
        n for n in ast.walk(module.tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)
    ]:
        call = node.value
        assert isinstance(call, ast.Call)
        name = name_of(call)
        if name not in ("send", "recv") or not call.args:
            continue
        found.add(name)
        rest = ", ".join(map(module.source, [*call.args[1:], *call.keywords]))
        tensor = module.source(call.args[0])
        if name == "send":
            edits.append((node, f"{SEND}({', '.join(filter(None, (tensor, rest)))})"))
        elif isinstance(call.args[0], ast.Name | ast.Attribute):
            edits.append((node, f"{tensor} = {RECEIVE}({', '.join(filter(None, (tensor, rest)))})"))
        else:
            return
    if found == {"send", "recv"}:
        line = min(node.lineno for node, _ in edits)  # type: ignore[attr-defined]
        text = with_helper(module.edited(*edits), HELPER)
        yield Proposal(what="shapes are sent ahead of tensors", text=text, line=line)


EXAMPLE = Example(
    line=7,
    before="""import torch
import torch.distributed as dist


def hand_over(rank, activations):
    if rank == 0:
        dist.send(activations, dst=1)
    else:
        dist.recv(activations, src=0)
""",
    after=f"""import torch
import torch.distributed as dist


{HELPER}

def hand_over(rank, activations):
    if rank == 0:
        {SEND}(activations, dst=1)
    else:
        activations = {RECEIVE}(activations, src=0)
""",
)
TEMPLATE = Template(name="shape sent ahead", propose=propose, example=EXAMPLE)
