"""What can be seen of a process from outside, tried on one; and what permission there is to look."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from nsadiag.agent.captures.proc import proc
from nsadiag.agent.captures.py_spy import find_py_spy, native_stack, python_stack
from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.agent.checkup.check import Check
from nsadiag.evidence.layout import make_private_dir, read_json

CAP_SYS_PTRACE = 19
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
SECCOMP = {"0": "no seccomp", "1": "strict seccomp", "2": "a seccomp filter"}


def python_stacks(target: Target) -> Check:
    """py-spy on the process."""
    name = "Python stacks"
    try:
        find_py_spy()
    except CaptureError as error:
        return Check(
            name=name, status="missing", detail=str(error), remedy="pip install py-spy", essential=True
        )
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


def native_stacks(target: Target) -> Check:
    """py-spy --native: what a rank does inside NCCL, gloo or the driver."""
    name = "native stacks"
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
    status = _own_status()
    capable = bool(int(status.get("CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1)
    parts = [
        f"user {_name(os.geteuid())}",
        "CAP_SYS_PTRACE" if capable else "no CAP_SYS_PTRACE",
        f"ptrace_scope {_scope()}" if _scope() is not None else "no ptrace_scope (yama is off)",
        SECCOMP.get(status.get("Seccomp", ""), "seccomp unknown"),
    ]
    fine = capable or (not _scope() and _owner(pid) == os.geteuid())
    return Check(
        name="permission to look",
        status="works" if fine else "limited",
        detail=", ".join(parts),
        remedy="" if fine else remedy(pid),
    )


def remedy(pid: int) -> str:
    """What would let us read this process's memory; the first obstacle first."""
    owner, scope = _owner(pid), _scope()
    capable = bool(int(_own_status().get("CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1)
    if owner is not None and owner != os.geteuid() and not capable:
        return f"run nsadiag as {_name(owner)}, whose process it is, or as root with CAP_SYS_PTRACE"
    if scope and not capable:
        only_root = " (3 forbids it to root, too, until the next boot)" if scope == 3 else ""
        return f"sudo sysctl kernel.yama.ptrace_scope=0{only_root}; in a container: --cap-add SYS_PTRACE"
    if not capable and _own_status().get("Seccomp") == "2":
        return "start the container with --cap-add SYS_PTRACE (its seccomp filter forbids ptrace)"
    return "start as root, or the container with --cap-add SYS_PTRACE"


def _own_status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _scope() -> int | None:
    try:
        return int(PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        return None


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
