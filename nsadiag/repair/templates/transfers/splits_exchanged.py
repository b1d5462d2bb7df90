"""The sizes that a rank receives in an all_to_all are those that the others send: they tell each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper
from nsadiag.source.model import name_of

NAME = "splits_of_others"
HELPER = f'''def {NAME}(splits, group=None):
    """For each rank the size that it sends to this one; `splits`: what this one sends to each."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    mine = torch.as_tensor(splits, device=device)
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine, group=group)
    return theirs.tolist()
'''


def propose(module: Module) -> Iterator[Proposal]:
    """At assignments of the received sizes of an all_to_all_single, in the function that makes it."""
    if module.binds(NAME):
        return
    for call in module.around(ast.Call):
        assert isinstance(call, ast.Call)
        if name_of(call) != "all_to_all_single":
            continue
        received, sent = _argument(call, 2, "output_split_sizes"), _argument(call, 3, "input_split_sizes")
        if received is None or sent is None:
            continue
        name = next((n.id for n in ast.walk(received) if isinstance(n, ast.Name)), "")
        for node in ast.walk(module.function_of(call)):
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == name
                and node.lineno < call.lineno
            ):
                text = module.replaced(node.value, f"{NAME}({module.source(sent)})")
                what = f"`{name}` in line {node.lineno} is what the other ranks send"
                yield Proposal(what=what, text=with_helper(text, HELPER), line=call.lineno)


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if len(call.args) > place:
        return call.args[place]
    return next((k.value for k in call.keywords if k.arg == name), None)


EXAMPLE = Example(
    line=7,
    before="""import torch.distributed as dist


def dispatch(rows, counts):
    incoming = counts
    out = rows.new_empty(sum(incoming), rows.shape[1])
    dist.all_to_all_single(out, rows, incoming, counts)
    return out
""",
    after=f"""import torch.distributed as dist


{HELPER}

def dispatch(rows, counts):
    incoming = {NAME}(counts)
    out = rows.new_empty(sum(incoming), rows.shape[1])
    dist.all_to_all_single(out, rows, incoming, counts)
    return out
""",
)
TEMPLATE = Template(name="splits exchanged", propose=propose, example=EXAMPLE)
