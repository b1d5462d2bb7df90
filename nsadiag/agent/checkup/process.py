"""Checks of a process as seen from outside, tried on one; and of the permission to look."""

from __future__ import annotations

import dataclasses
import os

from nsadiag.agent.captures.kernel.proc import proc
from nsadiag.agent.captures.python.py_spy import find_py_spy, native_stack, python_stack
from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.agent.checkup.check import Check
from nsadiag.agent.permission import (
    SECCOMP,
    is_capable,
    own_status,
    owner_of,
    ptrace_scope,
    remedy,
    user_name,
)
from nsadiag.evidence.layout import make_private_dir, read_json

STACKS, FAULTHANDLER = "Python stacks", "faulthandler"
WITHOUT_PY_SPY = "verdicts will lack native frames, stacks of data-loader workers and who holds the interpreter lock; lines come from faulthandler"


def python_stacks(target: Target) -> Check:
    """py-spy on the process."""
    name = STACKS
    if missing := _without_py_spy(name):
        return dataclasses.replace(missing, essential=True)
    make_private_dir(target.directory.path)
    try:
        python_stack(target)
    except CaptureError as error:
        return Check(
            name=name, status="missing", detail=str(error), remedy=remedy(target.pid), essential=True
        )
    threads = read_json(target.directory.py_spy, [])
    return Check(
        name=name, status="works", detail=f"py-spy read {_count(len(threads), 'thread')}", essential=True
    )


def _without_py_spy(name: str) -> Check | None:
    try:
        find_py_spy()
    except CaptureError as error:
        return Check(name=name, status="missing", detail=str(error), remedy="pip install py-spy")
    return None


def native_stacks(target: Target) -> Check:
    """py-spy --native: what a rank does inside NCCL, gloo or the driver."""
    name = "native stacks"
    if missing := _without_py_spy(name):
        return missing
    try:
        native_stack(target)
    except CaptureError as error:
        return Check(name=name, status="missing", detail=str(error), remedy=remedy(target.pid))
    return Check(name=name, status="works", detail="py-spy --native read Python and C frames")


def kernel_state(target: Target) -> Check:
    """/proc of the process: what it waits for in the kernel, and how much it works."""
    name = "kernel state"
    make_private_dir(target.directory.path)
    proc(target)
    seen = read_json(target.directory.proc, {})
    closed = [
        what
        for what, there in (
            ("syscall", seen.get("syscall")),
            ("stack", seen.get("kernel_stack")),
            ("I/O counters", seen.get("io")),
            ("descriptors", "count" in seen.get("fds", {})),
        )
        if not there
    ]
    detail = "/proc: state, CPU time" + (
        f"; not {', '.join(closed)}" if closed else ", syscall, stack, I/O, descriptors"
    )
    # The kernel's stack is for root alone: the rest tells enough.
    if set(closed) <= {"stack"}:
        return Check(name=name, status="works", detail=detail, essential=True)
    return Check(name=name, status="limited", detail=detail, remedy=remedy(target.pid), essential=True)


def permission(pid: int) -> Check:
    """ptrace_scope, CAP_SYS_PTRACE, seccomp and whose process it is, in one line."""
    capable, scope = is_capable(), ptrace_scope()
    parts = [
        f"user {user_name(os.geteuid())}",
        "CAP_SYS_PTRACE" if capable else "no CAP_SYS_PTRACE",
        f"ptrace_scope {scope}" if scope is not None else "no ptrace_scope (yama is off)",
        SECCOMP.get(own_status().get("Seccomp", ""), "seccomp unknown"),
    ]
    fine = capable or (not scope and owner_of(pid) == os.geteuid())
    return Check(
        name="ptrace permission",
        status="works" if fine else "limited",
        detail=", ".join(parts),
        remedy="" if fine else remedy(pid),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def with_faulthandler(checks: list[Check]) -> list[Check]:
    """The same checks: where py-spy may not look and faulthandler answers, verdicts have lines all the same."""
    if not any(check.name == FAULTHANDLER and check.status == "works" for check in checks):
        return checks
    return [
        dataclasses.replace(c, status="limited", detail=f"{c.detail}: {WITHOUT_PY_SPY}")
        if c.name == STACKS and c.status == "missing"
        else c
        for c in checks
    ]
