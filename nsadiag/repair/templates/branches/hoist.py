"""A call that communicates leaves the branch of one rank: all ranks make it, and what stays in the branch is that rank's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module
from nsadiag.source.model import last_name

RESULT = "result_of_all"


def propose(module: Module) -> Iterator[Proposal]:
    """At branches on the rank around the lines; the statement that holds a line goes first, with what it needs of the branch."""
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        own, others = _conditions(module, node.test)
        if not own or (others and node.orelse):
            continue
        marked = [
            s for s in node.body if any(s.lineno <= line <= (s.end_lineno or 0) for line in module.lines)
        ]
        for statement in [*marked, *(s for s in node.body if s not in marked)]:
            if not any(isinstance(n, ast.Call) for n in ast.walk(statement)) or _jumps(statement):
                continue
            if (inner := _inner(module, statement)) and not module.binds(RESULT):
                what = f"all ranks run `{module.source(inner)[:60]}` of line {statement.lineno}, and what is done with it is one's"
                text = _computed_before(module, node, inner, own, others)
                yield Proposal(what=what, text=text, line=statement.lineno, branch=node.lineno)
            moved = _with_needs(statement, node.body)
            what = f"all ranks run line {statement.lineno}, out of the branch in line {node.lineno}"
            text = _parted(module, node, moved, own, others) if others else module.moved_before(moved, node)
            yield Proposal(what=what, text=text, line=statement.lineno, branch=node.lineno)
            if (split := _in_callee(module, statement, text)) and not others:
                what = f"{what}, and the rest of what it calls is rank 0's"
                yield Proposal(what=what, text=split, line=statement.lineno, branch=node.lineno)


def _conditions(module: Module, test: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """Parts of a condition that all have to hold: those on the rank, and the others."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    own = [part for part in parts if module.provenance(part) == "rank"]
    return own, [part for part in parts if part not in own]


def _inner(module: Module, statement: ast.stmt) -> ast.Call | None:
    """A call whose result another one is given, as `print(evaluate(model))`, of names that are bound outside of the branch."""
    outer = statement.value if isinstance(statement, ast.Expr) else None
    branch = module.parents[statement]
    if not isinstance(outer, ast.Call) or not isinstance(branch, ast.If):
        return None
    bound = {name for s in branch.body for name in _names(s, ast.Store)}
    calls = (
        n
        for a in outer.args
        for n in ast.walk(a)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute | ast.Name)
    )
    return next(
        (c for c in calls if not bound & {n.id for n in ast.walk(c) if isinstance(n, ast.Name)}), None
    )


def _computed_before(
    module: Module, node: ast.If, inner: ast.Call, own: list[ast.expr], others: list[ast.expr]
) -> str:
    """The call in front of the branch, which keeps what is done with the result."""
    if not others:
        text = module.replaced(inner, RESULT)
        rows = text.splitlines(keepends=True)
        row = f"{' ' * node.col_offset}{RESULT} = {module.source(inner)}\n"
        return "".join([*rows[: node.lineno - 1], row, *rows[node.lineno - 1 :]])
    outer, rank = (" and ".join(map(module.source, parts)) for parts in (others, own))
    edited = module.edited((inner, RESULT)).splitlines(keepends=True)[
        node.body[0].lineno - 1 : node.body[-1].end_lineno
    ]
    indent = " " * node.col_offset
    head = [
        f"{indent}if {outer}:\n",
        f"{indent}    {RESULT} = {module.source(inner)}\n",
        f"{indent}    if {rank}:\n",
    ]
    rows = module.rows
    return "".join(
        [*rows[: node.lineno - 1], *head, *(f"    {row}" for row in edited), *rows[node.end_lineno or 0 :]]
    )


def _jumps(statement: ast.stmt) -> bool:
    """Whether it leaves a loop or function that it would no longer leave under the condition."""
    return any(isinstance(n, ast.Return | ast.Break | ast.Continue | ast.Raise) for n in ast.walk(statement))


def _with_needs(statement: ast.stmt, body: list[ast.stmt]) -> list[ast.stmt]:
    """The statement behind those before it in the branch that bind what it reads."""
    needed, taken = _names(statement, ast.Load), [statement]
    for earlier in reversed(body[: body.index(statement)]):
        if _names(earlier, ast.Store) & needed:
            taken.insert(0, earlier)
            needed |= _names(earlier, ast.Load)
    return taken


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def _parted(
    module: Module, node: ast.If, moved: list[ast.stmt], own: list[ast.expr], others: list[ast.expr]
) -> str:
    """A branch by the other conditions, with one by the rank in it for what stays."""
    rest = [s for s in node.body if s not in moved]
    outer, inner = (" and ".join(map(module.source, parts)) for parts in (others, own))
    rows = [f"if {outer}:"]
    rows += [f"    {row}" for s in moved for row in _rows(module, s)]
    if rest:
        rows.append(f"    if {inner}:")
        rows += [f"        {row}" for s in rest for row in _rows(module, s)]
    return module.edited((node, module.indented(node, *rows)))


def _rows(module: Module, statement: ast.stmt) -> list[str]:
    first, *rest = module.source(statement).splitlines()
    return [first, *(row[statement.col_offset :] for row in rest)]


def _in_callee(module: Module, statement: ast.stmt, hoisted: str) -> str:
    """The hoisted text in which the function that the statement calls goes on, behind its calls, on rank 0 alone; empty where it can't."""
    names = [last_name(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)]
    functions = [n for n in ast.walk(module.tree) if isinstance(n, FUNCTIONS) and n.name in names]
    alias = _alias(module.tree)
    if len(functions) != 1 or not alias:
        return ""
    body = functions[0].body
    marked = [
        n for n, s in enumerate(body) if any(s.lineno <= line <= (s.end_lineno or 0) for line in module.lines)
    ]
    if not marked or marked[-1] + 1 >= len(body):
        return ""
    after = Module(hoisted)
    callee = next(n for n in ast.walk(after.tree) if isinstance(n, FUNCTIONS) and n.name == functions[0].name)
    rest = callee.body[marked[-1] + 1 :]
    if any(isinstance(n, ast.Return) for s in rest for n in ast.walk(s)):
        return ""
    indent = " " * rest[0].col_offset
    start, end = rest[0].lineno - 1, rest[-1].end_lineno or 0
    rows = [f"    {row}" if row.strip() else row for row in after.rows[start:end]]
    head = f"{indent}if {alias}.get_rank() == 0:\n"
    return "".join([*after.rows[:start], head, *rows, *after.rows[end:]])


def _alias(tree: ast.Module) -> str:
    """The name of torch.distributed in the module."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.distributed":
                    return alias.asname or alias.name
    return ""


EXAMPLE = Example(
    line=7,
    before="""import torch.distributed as dist


def log(rank, loss):
    if rank == 0:
        total = loss.clone()
        dist.all_reduce(total)
        print(total)
""",
    after="""import torch.distributed as dist


def log(rank, loss):
    total = loss.clone()
    dist.all_reduce(total)
    if rank == 0:
        print(total)
""",
)
TEMPLATE = Template(name="hoist", propose=propose, example=EXAMPLE)
