"""A wait whose timeout the code is ready for is given one: a handler expects it, or a loop asks again whether to go on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import last_name, name_of

WAIT_S = "1.0"
# By the exception of a timeout, the calls that raise it where they are given one.
RAISED_BY = {
    "Empty": ("get",),
    "Full": ("put",),
    "TimeoutExpired": ("wait", "communicate", "run", "check_call", "check_output"),
    "TimeoutError": ("result", "wait", "get", "wait_for", "join"),
    "BrokenBarrierError": ("wait",),
}
RETURNS = ("wait", "join", "acquire")  # without an exception


def propose(module: Module) -> Iterator[Proposal]:
    """At calls without a timeout in a `try` for its exception, then at those in a loop that ends by another condition."""
    for node in module.around(ast.Try):
        assert isinstance(node, ast.Try)
        expected = {name for handler in node.handlers for name in _names(handler.type)}
        waits = {call for name in expected for call in RAISED_BY.get(name, ())}
        for call in _calls(node.body):
            if name_of(call) in waits and _is_endless(call):
                yield _given(module, call)
    for loop in module.around(ast.While):
        assert isinstance(loop, ast.While)
        if isinstance(loop.test, ast.Constant):
            continue
        for call in _calls(loop.body):
            if name_of(call) in RETURNS and not call.args and _is_endless(call):
                yield _given(module, call)


def _names(kind: ast.expr | None) -> list[str]:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind] if kind is not None else []
    return [last_name(each) for each in kinds]


def _calls(body: list[ast.stmt]) -> Iterator[ast.Call]:
    return (
        n for s in body for n in ast.walk(s) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    )


def _is_endless(call: ast.Call) -> bool:
    """Whether no timeout is given, also not by its place behind `block`."""
    return len(call.args) < 2 and not any(
        k.arg in ("timeout", "block", "blocking", None) for k in call.keywords
    )


def _given(module: Module, call: ast.Call) -> Proposal:
    source = module.source(call)
    inside = source[:-1].rstrip().rstrip(",")
    comma = "" if inside.endswith("(") else ", "
    what = f"`{source.splitlines()[0][:60]}` in line {call.lineno} waits for {WAIT_S} s at most"
    return Proposal(
        what=what, text=module.replaced(call, f"{inside}{comma}timeout={WAIT_S})"), line=call.lineno
    )


EXAMPLE = Example(
    line=7,
    before="""import queue


def work(jobs, stop):
    while not stop.is_set():
        try:
            job = jobs.get()
        except queue.Empty:
            continue
        job.run()
""",
    after="""import queue


def work(jobs, stop):
    while not stop.is_set():
        try:
            job = jobs.get(timeout=1.0)
        except queue.Empty:
            continue
        job.run()
""",
)
TEMPLATE = Template(name="timeout given", propose=propose, example=EXAMPLE)
