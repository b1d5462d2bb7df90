"""Failures that cannot be repaired where they lie, each with one line that says why. Nothing is touched."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from nsadiag.deadlines import programs
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.records import Verdict

GENERATED = re.compile(
    r"@generated|\bdo not (?:edit|modify)\b|\b(?:auto-?)?generated (?:by|from|file)\b", re.IGNORECASE
)
FIRST_LINES = 8
INSTALLED = ("site-packages", "dist-packages")
NOTEBOOK = re.compile(r"^<ipython|/ipykernel_|\.ipynb$")
GIT_S = 60.0


def check_verdict(verdict: Verdict) -> None:
    """Raises UsageError where another thing than the code is to be changed."""
    if verdict.outcome == "healthy":
        raise UsageError("the run was healthy: there is nothing to repair")
    if verdict.action is None or verdict.action.do != "fix code":
        what = verdict.action.do if verdict.action else "unknown"
        raise UsageError(
            f"the verdict asks for another action than a change of the code: {what}", verdict.fix or ""
        )


def check_host(host: str) -> None:
    """Raises UsageError for the run of another machine."""
    if host and host != os.uname().nodename:
        raise UsageError(
            f"the run is of another machine: {host}",
            "a repair is tried where the job's sources are: run fix there",
        )


def check_file(path: str, text: str) -> None:
    """Raises UsageError for a file that is no source of the user's to be changed."""
    if NOTEBOOK.search(path):
        raise UsageError(
            f"the line is in a notebook: {path}", "move the code into a module, and run the job again"
        )
    if any(part in INSTALLED for part in Path(path).parts):
        raise UsageError(
            f"the line is in an installed package: {path}", "report it to the package, or install it editable"
        )
    found = next((row for row in text.splitlines()[:FIRST_LINES] if GENERATED.search(row)), None)
    if found is not None:
        raise UsageError(f"{path} is generated: {found.strip()[:80]}", "change what it is generated from")


def check_unchanged(kept: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises UsageError where a source is not what the run had; both as they are kept, with secrets masked."""
    for path, text in kept.items():
        if path not in now:
            raise UsageError(f"{path} is gone since the run", "run the job again, and fix that run")
        if now[path] != text:
            raise UsageError(f"{path} has changed since the run", "run the job again, and fix that run")


def check_writable(paths: list[Path]) -> None:
    """Raises MachineError for a file that may not be written, UsageError for one that is not in a clean git checkout."""
    for path in paths:
        if not os.access(path, os.W_OK):
            raise MachineError(
                f"{path} is not writable", "print the patch without --write, and apply it elsewhere"
            )
        line = ["git", "-C", str(path.parent), "status", "--porcelain"]
        try:
            done = programs.run(line, seconds=GIT_S)
        except (OSError, TimeoutError) as error:
            raise MachineError(f"git status: {error}", "--write needs git") from None
        if done.returncode:
            raise UsageError(
                f"{path} is in no git checkout", "print the patch without --write, and apply it by hand"
            )
        if done.stdout.strip():
            changed = done.stdout.splitlines()[0][3:]
            raise UsageError(
                f"the git checkout has changes: {changed}", "commit or stash them before --write"
            )
