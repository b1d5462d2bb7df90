"""A loss without a graph, for batches that have nothing to learn from, is zero times what the model computed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module
from nsadiag.source.model import last_name, name_of

CONSTANT = ("tensor", "zeros", "zeros_like", "scalar_tensor")
ASKS = ("requires_grad", "requires_grad_")


def propose(module: Module) -> Iterator[Proposal]:
    """At tensors of a constant that ask for a gradient: tensors of the same function that calls return or take, nearest first."""
    for call in [n for n in ast.walk(module.tree) if isinstance(n, ast.Call) and _is_detached(n)]:
        if isinstance(module.parents[call], ast.Attribute):
            continue  # the inner one of `torch.zeros(()).requires_grad_()`
        for name in _outputs(module, call):
            what = f"the loss of line {call.lineno} is zero times `{name}`"
            yield Proposal(what=what, text=module.replaced(call, f"{name}.sum() * 0.0"), line=call.lineno)


def _is_detached(call: ast.Call) -> bool:
    if name_of(call) in CONSTANT:
        return any(k.arg in ASKS and getattr(k.value, "value", None) is True for k in call.keywords)
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return name_of(call) in ASKS and isinstance(inner, ast.Call) and name_of(inner) in CONSTANT


def _outputs(module: Module, call: ast.Call) -> list[str]:
    """Names that calls were assigned to before it, and parameters of the function."""
    function = module.function_of(call)
    assigned = [
        (s.lineno, last_name(s.targets[0]))
        for s in ast.walk(function)
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call) and isinstance(s.targets[0], ast.Name)
        and s.lineno < call.lineno
    ]  # fmt: skip
    # What was computed first is the model's output; what comes later are parts of it, which may be empty.
    given = (
        [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
        if isinstance(function, FUNCTIONS)
        else []
    )
    return list(dict.fromkeys([*given, *(name for _, name in sorted(assigned))]))


EXAMPLE = Example(
    line=6,
    before="""import torch


def box_loss(predicted, targets):
    if len(targets) == 0:
        return torch.tensor(0.0, requires_grad=True)
    return smooth_l1_loss(predicted, targets)
""",
    after="""import torch


def box_loss(predicted, targets):
    if len(targets) == 0:
        return predicted.sum() * 0.0
    return smooth_l1_loss(predicted, targets)
""",
)
TEMPLATE = Template(name="connected zero", propose=propose, example=EXAMPLE)
