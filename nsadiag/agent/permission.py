"""Reasons why a process may not be looked into, as far as the kernel tells, and what would change that."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

CAP_SYS_PTRACE = 19
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
SECCOMP = {"0": "no seccomp", "1": "strict seccomp", "2": "a seccomp filter"}
FILTERED = "2"


def obstacles(pid: int) -> list[str]:
    """Each by name, the surest first; empty where none shows."""
    found = []
    owner = owner_of(pid)
    if owner is not None and owner != os.geteuid() and not is_capable():
        found.append(f"it belongs to {user_name(owner)}, and you are {user_name(os.geteuid())}")
    if _in_another_user_namespace(pid):
        found.append("it is in another user namespace, as a container's or a sandbox's")
    scope = ptrace_scope()
    if scope and not is_capable():
        found.append(f"Yama's ptrace_scope is {scope}")
    if own_status().get("Seccomp") == FILTERED:
        found.append("a seccomp filter is on this process")
    if not is_capable():
        found.append("there is no CAP_SYS_PTRACE")
    return found


def remedy(pid: int) -> str:
    """Advice on how to be allowed to read this process's memory; the first obstacle first."""
    owner, scope, capable = owner_of(pid), ptrace_scope(), is_capable()
    if owner is not None and owner != os.geteuid() and not capable:
        return f"run nsadiag as {user_name(owner)}, whose process it is, or as root with CAP_SYS_PTRACE"
    if scope and not capable:
        only_root = " (3 forbids it to root, too, until the next boot)" if scope == 3 else ""
        return f"sudo sysctl kernel.yama.ptrace_scope=0{only_root}; in a container: --cap-add SYS_PTRACE"
    if own_status().get("Seccomp") == FILTERED:
        return "start the container with --cap-add SYS_PTRACE (its seccomp filter forbids ptrace)"
    if _in_another_user_namespace(pid):
        return "run nsadiag inside the container or sandbox of the job"
    if capable:
        return "nothing here shows what forbids it: a security module, or a sandbox that knows no ptrace"
    return "start as root, or the container with --cap-add SYS_PTRACE"


def hides_processes() -> bool:
    """Whether /proc shows each user the own processes alone."""
    try:
        rows = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    options = next((row.split()[3] for row in rows if row.split()[1:3] == ["/proc", "proc"]), "")
    hidden = any(
        o.startswith("hidepid=") and o not in ("hidepid=0", "hidepid=off") for o in options.split(",")
    )
    return hidden and os.geteuid() != 0


def is_capable() -> bool:
    return bool(int(own_status().get("CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1)


def own_status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def ptrace_scope() -> int | None:
    try:
        return int(PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        return None


def owner_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _in_another_user_namespace(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
    except OSError:
        return False
