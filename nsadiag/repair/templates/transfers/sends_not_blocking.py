"""Two ranks that both send first let their sends go on while they receive."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

NAME = "sending"


def propose(module: Module) -> Iterator[Proposal]:
    """At a send that is a statement of its own, before a receive in the same block."""
    for node in module.around(ast.Expr):
        assert isinstance(node, ast.Expr)
        call = node.value
        if not isinstance(call, ast.Call) or name_of(call) != "send":
            continue
        later = [s for s in module.body_of(node) if s.lineno > node.lineno]
        receive = next((s for s in later if _receives(s)), None)
        name = next(n for n in (NAME, *(f"{NAME}_{i}" for i in range(2, 99))) if not module.binds(n))
        if receive is None:
            continue
        function = module.source(call.func)
        arguments = module.source(call)[len(function) :]
        started = f"{name} = {function.removesuffix('send')}isend{arguments}"
        waited = module.indented(receive, module.source(receive), f"{name}.wait()")
        what = f"the send in line {node.lineno} goes on during the receive in line {receive.lineno}"
        yield Proposal(what=what, text=module.edited((node, started), (receive, waited)), line=node.lineno)


def _receives(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr | ast.Assign) and any(
        isinstance(n, ast.Call) and name_of(n) == "recv" for n in ast.walk(statement)
    )


EXAMPLE = Example(
    line=5,
    before="""import torch.distributed as dist


def swap(mine, theirs, neighbour):
    dist.send(mine.contiguous(), neighbour)
    dist.recv(theirs, neighbour)
    return theirs
""",
    after="""import torch.distributed as dist


def swap(mine, theirs, neighbour):
    sending = dist.isend(mine.contiguous(), neighbour)
    dist.recv(theirs, neighbour)
    sending.wait()
    return theirs
""",
)
TEMPLATE = Template(name="sends that do not block", propose=propose, example=EXAMPLE)
