"""An answer that others wait for is given in a `finally`: also where what comes before it has raised."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, first_line
from nsadiag.source.model import name_of

ANSWERS = frozenset(
    {"send", "isend", "barrier", "wait_for_everyone", "all_reduce", "broadcast", "all_gather", "gather", "reduce"}
    | {"task_done", "set", "put", "put_nowait", "release", "notify", "notify_all", "ack", "wait", "write"}
)  # fmt: skip


def propose(module: Module) -> Iterator[Proposal]:
    """At a `try` whose handler goes on, and whose last statement answers with nothing that the `try` binds."""
    for node in module.around(ast.Try):
        assert isinstance(node, ast.Try)
        body = node.orelse or node.body
        last = body[-1]
        if not any(map(_goes_on, node.handlers)) or (body is node.body and len(body) == 1):
            continue
        call = last.value if isinstance(last, ast.Expr) else None
        if isinstance(call, ast.Call) and name_of(call) in ANSWERS and not _needed(node, last):
            what = f"line {last.lineno} is run in a `finally`, also where line {node.lineno} and after has raised"
            yield Proposal(what=what, text=_in_finally(module, node, body), line=last.lineno)


def _goes_on(handler: ast.ExceptHandler) -> bool:
    return not any(isinstance(n, ast.Raise | ast.Return | ast.Break) for n in ast.walk(handler))


def _needed(node: ast.Try, last: ast.stmt) -> set[str]:
    """Names that the statement reads and that only the `try` binds: there is none where it has raised."""
    names = [n for s in [*node.body, *node.orelse] for n in ast.walk(s) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return bound & {n.id for n in ast.walk(last) if isinstance(n, ast.Name)}


def _in_finally(module: Module, node: ast.Try, body: list[ast.stmt]) -> str:
    last = body[-1]
    first, end, over = first_line(last), last.end_lineno or 0, node.end_lineno or 0
    rows = [row if row.endswith("\n") else f"{row}\n" for row in module.rows]
    indent = " " * node.col_offset
    head = [] if node.finalbody else [f"{indent}finally:\n"]
    alone = [f"{indent}    pass\n"] if len(body) == 1 else []  # in an `else`
    return "".join([*rows[: first - 1], *alone, *rows[end:over], *head, *rows[first - 1 : end], *rows[over:]])


EXAMPLE = Example(
    line=8,
    before="""import torch.distributed as dist


def serve(sentence, done):
    dist.recv(sentence, 0)
    try:
        translate(sentence)
        dist.send(done, 0)
    except ValueError:
        print("left out")
""",
    after="""import torch.distributed as dist


def serve(sentence, done):
    dist.recv(sentence, 0)
    try:
        translate(sentence)
    except ValueError:
        print("left out")
    finally:
        dist.send(done, 0)
""",
)
TEMPLATE = Template(name="acknowledged always", propose=propose, example=EXAMPLE)
