"""Calls that a thread makes beside the main thread have a process group of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import FUNCTIONS, Module
from nsadiag.source.model import last_name, name_of

NAME = "own_group"
CALLED = (
    "all_reduce",
    "all_gather",
    "all_gather_object",
    "broadcast",
    "broadcast_object_list",
    "barrier",
    "gather_object",
)


def propose(module: Module) -> Iterator[Proposal]:
    """At classes with a method that a thread runs: the group is made with the object, by all ranks."""
    if module.binds(NAME):
        return
    for cls in [n for n in ast.walk(module.tree) if isinstance(n, ast.ClassDef)]:
        methods = {n.name: n for n in cls.body if isinstance(n, FUNCTIONS)}
        run = {
            last_name(k.value)
            for n in ast.walk(module.tree)
            if isinstance(n, ast.Call)
            for k in n.keywords
            if k.arg == "target"
        }
        if any(last_name(base) == "Thread" for base in cls.bases):
            run.add("run")
        calls = [
            n for name in sorted(run & methods.keys()) for n in ast.walk(methods[name])
            if isinstance(n, ast.Call) and name_of(n) in CALLED and not any(k.arg == "group" for k in n.keywords)
        ]  # fmt: skip
        made = methods.get("__init__")
        if not calls or made is None:
            continue
        module_name = ast.unparse(calls[0].func).rpartition(".")[0]
        prefix = f"{module_name}." if module_name else ""
        last = made.body[-1]
        created = module.indented(last, module.source(last), f"self.{NAME} = {prefix}new_group()")
        edits = [
            (
                call,
                f"{module.source(call)[:-1].rstrip().removesuffix(',')}{', ' * bool(call.args or call.keywords)}group=self.{NAME})",
            )
            for call in calls
        ]
        what = f"the thread of {cls.name} has a group of its own"
        yield Proposal(what=what, text=module.edited((last, created), *edits), line=calls[0].lineno)


EXAMPLE = Example(
    line=13,
    before="""import threading

import torch.distributed as dist


class Saver:
    def __init__(self):
        self.thread = None

    def save(self):
        self.thread = threading.Thread(target=self.write)

    def write(self):
        dist.all_gather_object(self.parts, 1)
""",
    after="""import threading

import torch.distributed as dist


class Saver:
    def __init__(self):
        self.thread = None
        self.own_group = dist.new_group()

    def save(self):
        self.thread = threading.Thread(target=self.write)

    def write(self):
        dist.all_gather_object(self.parts, 1, group=self.own_group)
""",
)
TEMPLATE = Template(name="group of its own", propose=propose, example=EXAMPLE)
