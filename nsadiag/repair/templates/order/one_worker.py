"""Calls that threads of a pool make come in one order: the pool has one thread."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of


def propose(module: Module) -> Iterator[Proposal]:
    """At each pool of threads."""
    for call in [n for n in ast.walk(module.tree) if isinstance(n, ast.Call)]:
        if name_of(call) not in ("ThreadPoolExecutor", "ThreadPool"):
            continue
        given = next((k.value for k in call.keywords if k.arg in ("max_workers", "processes")), None)
        size = call.args[0] if call.args else given
        if isinstance(size, ast.Constant) and size.value == 1:
            continue
        whole = module.source(call)
        text = module.replaced(size, "1") if size else module.replaced(call, f"{whole[:-1]}max_workers=1)")
        yield Proposal(what=f"one thread in the pool of line {call.lineno}", text=text, line=call.lineno)


EXAMPLE = Example(
    line=5,
    before="""from concurrent.futures import ThreadPoolExecutor


def report(values):
    with ThreadPoolExecutor(4) as pool:
        return pool.submit(summed, values).result()
""",
    after="""from concurrent.futures import ThreadPoolExecutor


def report(values):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(summed, values).result()
""",
)
TEMPLATE = Template(
    name="one thread", propose=propose, example=EXAMPLE,
    classes=frozenset({"collective_order_mismatch", "collective_args_mismatch", "p2p_mismatch"}),
)  # fmt: skip
