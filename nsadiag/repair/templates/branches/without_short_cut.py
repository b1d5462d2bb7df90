"""An empty batch takes the way of all others: the branch that leaves early for it is gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module


def propose(module: Module) -> Iterator[Proposal]:
    """At branches on what is empty that only leave."""
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        leaves = len(node.body) == 1 and isinstance(node.body[0], ast.Return | ast.Continue)
        if leaves and not node.orelse and _asks_for_nothing(node.test):
            what = f"without leaving early in line {node.lineno}"
            yield Proposal(what=what, text=module.without(node), line=node.lineno)


def _asks_for_nothing(test: ast.expr) -> bool:
    """Whether it asks for a length or count of zero."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    return getattr(test.comparators[0], "value", None) == 0


EXAMPLE = Example(
    line=3,
    before="""class Expert(nn.Linear):
    def forward(self, tokens):
        if len(tokens) == 0:
            return tokens.detach()
        return super().forward(tokens)
""",
    after="""class Expert(nn.Linear):
    def forward(self, tokens):
        return super().forward(tokens)
""",
)
TEMPLATE = Template(name="without a short cut", propose=propose, example=EXAMPLE)
