"""Modules that a batch has no use for take part in its loss with the weight zero, so that their gradients are there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module


def propose(module: Module) -> Iterator[Proposal]:
    """At branches without another side that add what a module computes to a name."""
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        if node.orelse or len(node.body) != 1:
            continue
        statement = node.body[0]
        target = _added_to(statement)
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and _is_of_module(n)]
        used = dict.fromkeys(module.source(call.func) for call in calls)
        if not target or not used:
            continue
        parts = " + ".join(f"sum(p.sum() for p in {name}.parameters())" for name in used)
        lines = ("else:", f"    {target} = {target} + 0.0 * ({parts})")
        text = module.edited((node, module.indented(node, module.source(node), *lines)))
        what = f"{', '.join(used)} of line {statement.lineno} takes part where the branch is not taken"
        yield Proposal(what=what, text=text, line=node.lineno)


def _added_to(statement: ast.stmt) -> str:
    """The name that is assigned a sum with itself."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return ast.unparse(statement.target)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        target = ast.unparse(statement.targets[0])
        sides = statement.value.left, statement.value.right
        return target if any(ast.unparse(side) == target for side in sides) else ""
    return ""


def _is_of_module(node: ast.Call) -> bool:
    """A call of an attribute of self: in a model that is a module."""
    return (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
    )  # fmt: skip


EXAMPLE = Example(
    line=4,
    before="""class Heads(nn.Module):
    def forward(self, hidden, labelled):
        loss = self.first(hidden).mean()
        if labelled.any():
            loss = loss + self.second(hidden[labelled]).mean()
        return loss
""",
    after="""class Heads(nn.Module):
    def forward(self, hidden, labelled):
        loss = self.first(hidden).mean()
        if labelled.any():
            loss = loss + self.second(hidden[labelled]).mean()
        else:
            loss = loss + 0.0 * (sum(p.sum() for p in self.second.parameters()))
        return loss
""",
)
TEMPLATE = Template(name="takes part with weight zero", propose=propose, example=EXAMPLE)
