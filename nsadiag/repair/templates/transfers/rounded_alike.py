"""Senders and receivers count alike: one number of parts that two lines round differently is rounded one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

UP, DOWN = "up", "down"


def propose(module: Module) -> Iterator[Proposal]:
    """At divisions of the same numbers of which one is rounded up and another down: all up, then all down."""
    quotients = (node for node in ast.walk(module.tree) if isinstance(node, ast.expr))
    found = [(node, *rounded) for node in quotients if (rounded := _rounded(node))]
    for way in (UP, DOWN):
        for node, own, parts in found:
            other = next((n for n, theirs, same in found if same == parts and theirs == way != own), None)
            if other is None:
                continue
            what = (
                f"`{module.source(node)}` in line {node.lineno} is rounded {way}, as in line {other.lineno}"
            )
            text = module.replaced(node, _as(module, other, node))
            yield Proposal(what=what, text=text, line=node.lineno)


def _rounded(node: ast.AST) -> tuple[str, tuple[str, str]] | None:
    """The way in which a quotient is rounded, and its parts; None for anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        if isinstance(node.left, ast.UnaryOp):  # -(-a // b)
            return None
        return DOWN, _parts(node)
    if isinstance(node, ast.Call) and name_of(node) == "ceil" and node.args:
        inner = node.args[0]
        return (UP, _parts(inner)) if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) else None
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.BinOp)
    ):
        inner = node.operand
        if isinstance(inner.op, ast.FloorDiv) and isinstance(inner.left, ast.UnaryOp):
            return UP, (ast.unparse(inner.left.operand), ast.unparse(inner.right))
    return None


def _parts(node: ast.BinOp) -> tuple[str, str]:
    return ast.unparse(node.left), ast.unparse(node.right)


def _as(module: Module, other: ast.expr, node: ast.expr) -> str:
    text = module.source(other)
    return f"({text})" if isinstance(module.parents.get(node), ast.BinOp | ast.UnaryOp) else text


EXAMPLE = Example(
    line=12,
    before="""import math

import torch.distributed as dist


def send_all(batch, size):
    for part in batch.split(math.ceil(len(batch) / size)):
        dist.send(part, 1)


def receive_all(batch, size):
    for _ in range(len(batch) // size):
        dist.recv(batch, 0)
""",
    after="""import math

import torch.distributed as dist


def send_all(batch, size):
    for part in batch.split(math.ceil(len(batch) / size)):
        dist.send(part, 1)


def receive_all(batch, size):
    for _ in range(math.ceil(len(batch) / size)):
        dist.recv(batch, 0)
""",
)
TEMPLATE = Template(name="rounded alike", propose=propose, example=EXAMPLE)
