"""A value that each rank finds for itself, and that all need alike, is rank 0's on all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.conduct import DRAWS
from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, with_helper
from nsadiag.source.model import last_name
from nsadiag.source.vocabulary import is_rank, is_rank_call, is_rank_variable

NAME = "value_of_rank_0"
HELPER = f'''def {NAME}(value):
    """What rank 0 gives here, on all ranks: a value, and no object that each rank has to have for itself."""
    import copy

    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return value
    if copy.deepcopy(value) != value:
        raise TypeError(f"another rank's {{type(value).__name__}} is of no use here")
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]
'''


def propose(module: Module) -> Iterator[Proposal]:
    """At what is drawn at random around the lines, then at what the lines assign, go through, or call."""
    if module.binds(NAME):
        return
    for call in module.around(ast.Call):
        assert isinstance(call, ast.Call)
        if last_name(call.func) in DRAWS and not call.args and not call.keywords:
            text = module.replaced(call, f"{NAME}({module.source(call)})")
            what = f"rank 0 draws `{module.source(call)}` in line {call.lineno} for all"
            yield Proposal(what=what, text=with_helper(text, HELPER), line=call.lineno)
    for node in module.at_lines(ast.Assign, ast.AnnAssign, ast.For, ast.comprehension, ast.Call):
        value = _value(node)
        if value is None or isinstance(value, ast.Constant | ast.Lambda) or says_who(value):
            continue
        text = shared(module, value)
        what = f"all ranks take rank 0's `{module.source(value).splitlines()[0][:60]}` in line {value.lineno}"
        yield Proposal(what=what, text=with_helper(text, HELPER), line=value.lineno, is_guess=True)


def shared(module: Module, value: ast.expr) -> str:
    """The module's text with rank 0's value in place of each rank's own."""
    text = module.source(value)
    # `a, b = c, d` has a tuple without parentheses.
    is_bare = isinstance(value, ast.Tuple) and not text.startswith("(")
    return module.replaced(value, f"{NAME}(({text}))" if is_bare else f"{NAME}({text})")


def _value(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value
    if isinstance(node, ast.For | ast.comprehension):
        return node.iter
    # The function that a call chose, as `random.choice(tasks)(batch)`.
    return node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) else None


def says_who(value: ast.expr) -> bool:
    """Whether it is the rank, which has to differ."""
    if isinstance(value, ast.Name | ast.Attribute | ast.Compare | ast.UnaryOp | ast.BoolOp | ast.Tuple):
        nodes: list[ast.AST] = list(ast.walk(value))
    else:
        nodes = [value, *ast.iter_child_nodes(value)]
    return any(
        (isinstance(n, ast.Call) and is_rank_call(last_name(n.func)))
        or (isinstance(n, ast.Name | ast.Attribute) and is_rank(last_name(n)) and n is value)
        or (isinstance(n, ast.Constant) and isinstance(n.value, str) and is_rank_variable(n.value))
        for n in nodes
    )


EXAMPLE = Example(
    line=5,
    before="""import json


def configure(path):
    settings = json.loads(path.read_text())
    return build(settings)
""",
    after=f"""import json


{HELPER}

def configure(path):
    settings = {NAME}(json.loads(path.read_text()))
    return build(settings)
""",
)
TEMPLATE = Template(name="value of rank 0", propose=propose, example=EXAMPLE)
