"""The end of an iterator that one rank alone has is the end on all: they agree on it before the next call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.branches.exception_agreed import HELPER, NAME
from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper
from nsadiag.source.model import last_name
from nsadiag.source.vocabulary import is_rank_call

ONE = "of_one_rank"


def propose(module: Module) -> Iterator[Proposal]:
    """At branches on the rank in which an iterator is asked for its next item."""
    if module.binds(NAME) or module.binds(ONE):
        return
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        if module.provenance(node.test) == "uniform" or _does_something(node.test):
            continue
        for call in filter(None, map(_asks, node.body)):
            row = f"{ONE} = {NAME}(lambda: {module.source(call)} if {module.source(node.test)} else None, StopIteration)"
            whole = module.edited((call, ONE)).splitlines(keepends=True)
            at = node.lineno - 1
            text = "".join([*whole[:at], f"{' ' * node.col_offset}{row}\n", *whole[at:]])
            what = f"the end that `{module.source(call)}` meets in line {call.lineno} is the end on all ranks"
            yield Proposal(what=what, text=with_helper(text, HELPER), line=call.lineno, branch=node.lineno)


def _does_something(test: ast.expr) -> bool:
    """Whether it may not be asked twice."""
    return any(isinstance(n, ast.Call) and not is_rank_call(last_name(n.func)) for n in ast.walk(test))


def _asks(statement: ast.stmt) -> ast.Call | None:
    """The call of `next` without a default whose result is assigned."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    is_next = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "next"
    return call if is_next and isinstance(call, ast.Call) and len(call.args) == 1 else None


EXAMPLE = Example(
    line=7,
    before="""import torch
import torch.distributed as dist


def shared(rank, batches, shape):
    if rank == 0:
        batch = next(batches)
        shape = torch.tensor(batch.shape)
    dist.broadcast(shape, src=0)
    return shape
""",
    after=f"""import torch
import torch.distributed as dist


{HELPER}

def shared(rank, batches, shape):
    {ONE} = {NAME}(lambda: next(batches) if rank == 0 else None, StopIteration)
    if rank == 0:
        batch = {ONE}
        shape = torch.tensor(batch.shape)
    dist.broadcast(shape, src=0)
    return shape
""",
)
TEMPLATE = Template(name="end for all", propose=propose, example=EXAMPLE)
