"""Smaller cuts, once no statement can go: arguments, operands, numbers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from nsadiag.experiments.rewriting.edits import Closure, Cut, Links, made, number
from nsadiag.experiments.rewriting.program import Edit, Program


def trims(program: Program) -> Iterator[Cut]:
    """Arguments and operands: they cost no line, but a reader has to understand each."""
    links = Links.of(program)
    yield from _alike(program, links)
    for node in ast.walk(program.tree):
        if number(node) < 0 or not isinstance(node, ast.expr):
            continue
        if hasattr(links.statement(node), "verbatim"):
            continue
        for detail, target, edit in _trims_of(node):
            closure = Closure(links)
            closure.change(target, edit)
            yield from made(closure.cut("trim", target, detail))


def _alike(program: Program, links: Links) -> Iterator[Cut]:
    """`4 * dim` becomes dim wherever it is written: sizes have to fit each other."""
    found: dict[str, list[ast.BinOp]] = defaultdict(list)
    for node in ast.walk(program.tree):
        if (
            isinstance(node, ast.BinOp)
            and number(node) >= 0
            and not hasattr(links.statement(node), "verbatim")
        ):
            found[ast.unparse(node)].append(node)
    for text, nodes in found.items():
        for side in ("left", "right") if len(nodes) > 1 else ():
            closure = Closure(links)
            for node in nodes:
                closure.change(node, ("be", number(getattr(node, side))))
            yield from made(closure.cut("trim", nodes[0], f"each {text} {side}"))


def _trims_of(node: ast.expr) -> Iterator[tuple[str, ast.AST, Edit]]:
    if isinstance(node, ast.IfExp):
        yield "orelse", node, ("be", number(node.orelse))
        yield "body", node, ("be", number(node.body))
    elif isinstance(node, ast.BoolOp):
        for place, value in enumerate(node.values):
            yield f"operand {place}", node, ("be", number(value))
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg:
                yield f"argument {keyword.arg}", node, ("argument", keyword.arg)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            yield "call", node, ("be", number(node.func.value))
        for argument in node.args[:1] if len(node.args) == 1 else ():
            yield "inner", node, ("be", number(argument))
    elif isinstance(node, ast.BinOp):
        yield "left", node, ("be", number(node.left))
        yield "right", node, ("be", number(node.right))


def small_numbers(program: Program) -> Iterator[Cut]:
    """All numbers of one size at once become a smaller one, so that shapes still fit."""
    links = Links.of(program)
    found: dict[int, list[ast.Constant]] = defaultdict(list)
    for node in ast.walk(program.tree):
        if (
            isinstance(node, ast.Constant)
            and type(node.value) is int
            and node.value > 4
            and number(node) >= 0
        ):
            found[node.value].append(node)
    for rank, value in enumerate(sorted(found)):
        nodes = found[value]
        if any(hasattr(links.statement(n), "verbatim") for n in nodes):
            continue
        closure = Closure(links)
        for node in nodes:
            closure.change(node, ("replace", _constant(min(value - 1, 4 + rank), node)))
        yield from made(closure.cut("number", nodes[0], str(value)))


def _constant(value: Any, like: ast.AST) -> ast.Constant:
    fresh = ast.copy_location(ast.Constant(value=value), like)
    fresh.number = number(like)  # type: ignore[attr-defined]
    return fresh
