"""A distributed sampler has its epoch set, so that the order is another one, and the same on all ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, first_line
from nsadiag.source.model import last_name, name_of


def propose(module: Module) -> Iterator[Proposal]:
    """At the outermost loops around what goes through a loader, where a sampler has a name."""
    if any(isinstance(n, ast.Call) and name_of(n) == "set_epoch" for n in ast.walk(module.tree)):
        return
    samplers = [
        last_name(n.targets[0]) for n in ast.walk(module.tree)
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and name_of(n.value) == "DistributedSampler"
    ]  # fmt: skip
    loaders = [
        last_name(n.targets[0]) for n in ast.walk(module.tree)
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and name_of(n.value) == "DataLoader"
        and any(k.arg == "sampler" for k in n.value.keywords)
    ]  # fmt: skip
    for loop in [
        n for n in ast.walk(module.tree) if isinstance(n, ast.For) and isinstance(n.target, ast.Name)
    ]:
        if isinstance(module.function_of(loop), ast.Module) is False and not _counts(loop):
            continue
        for sampler in [*samplers, *(f"{loader}.sampler" for loader in loaders)]:
            assert isinstance(loop.target, ast.Name)
            inner = loop.body[0]
            call = f"{sampler}.set_epoch({loop.target.id})"
            row = f"{' ' * inner.col_offset}{call}\n"
            rows = module.rows
            at = first_line(inner) - 1
            yield Proposal(
                what=f"{call} in line {inner.lineno}",
                text="".join([*rows[:at], row, *rows[at:]]),
                line=loop.lineno,
            )


def _counts(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Call) and name_of(loop.iter) == "range"


EXAMPLE = Example(
    line=7,
    before="""from torch.utils.data import DataLoader, DistributedSampler


def train(data):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler)
    for epoch in range(3):
        for batch in loader:
            step(batch)
""",
    after="""from torch.utils.data import DataLoader, DistributedSampler


def train(data):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(batch)
""",
)
TEMPLATE = Template(
    name="epoch set",
    propose=propose,
    example=EXAMPLE,
    classes=frozenset({"silently_wrong", "uneven_inputs"}),
)
