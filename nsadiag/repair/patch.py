"""Patches that others wrote: a unified diff, applied to the sources by git in a folder of ours."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from nsadiag.deadlines import programs
from nsadiag.errors import MachineError, UsageError
from nsadiag.repair.change import Change
from nsadiag.repair.job import Job, text_of

NAMED = re.compile(r"^(?:---|\+\+\+) (?P<path>\S+)", re.MULTILINE)
GIT_S = 60.0
MOST_BYTES = 2**20


def read_patch(path: Path) -> str:
    """The text of a file with a diff. Raises UsageError."""
    try:
        return path.read_text()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


def change_of(job: Job, diff: str) -> Change:
    """The change that the diff makes of the job's sources. Raises UsageError where it does not apply, or leads out of the folder."""
    if len(diff) > MOST_BYTES:
        raise UsageError("the patch is larger than 1 MiB")
    paths = {_below(job, match["path"]) for match in NAMED.finditer(diff)} - {""}
    if not paths:
        raise UsageError("no file is named in the patch", "give a unified diff, as git diff prints it")
    with tempfile.TemporaryDirectory(prefix="nsadiag-patch-") as room:
        before = {path: text for path in paths if (text := text_of(job.folder / path)) is not None}
        for path, text in before.items():
            (Path(room) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(room) / path).write_text(text)
        _applied(job, diff, Path(room))
        after = {path: text_of(Path(room) / path) or "" for path in paths}
    change = Change.of(before, after)
    if not change.files:
        raise UsageError("the patch changes nothing")
    return change


def _applied(job: Job, diff: str, room: Path) -> None:
    (room / ".nsadiag.diff").write_text(diff)
    strip = "-p0" if _is_bare(job, diff) else "-p1"
    # Outside of a checkout git applies to whatever lies there, and refuses paths that lead out of it.
    line = ["git", "-C", str(room), "apply", strip, "--whitespace=nowarn", ".nsadiag.diff"]
    try:
        done = programs.run(
            line,
            seconds=GIT_S,
            env={"GIT_CEILING_DIRECTORIES": str(room.parent), "PATH": os.environ.get("PATH", os.defpath)},
        )
    except (OSError, TimeoutError) as error:
        raise MachineError(f"git apply: {error}", "patches are applied by git") from None
    if done.returncode:
        said = (done.stderr.strip() or "it failed").splitlines()[0]
        raise UsageError(f"the patch does not apply: {said}", f"paths are relative to {job.folder}")


def _is_bare(job: Job, diff: str) -> bool:
    """Whether paths have no `a/` and `b/` in front of them."""
    first = next(NAMED.finditer(diff))["path"]
    return not first.startswith(("a/", "b/", "/dev/null")) and (job.folder / first).exists()


def _below(job: Job, name: str) -> str:
    if name == "/dev/null":
        return ""
    path = name if not name.startswith(("a/", "b/")) or (job.folder / name).exists() else name[2:]
    if path.startswith("/") or ".." in Path(path).parts:
        raise UsageError(
            f"the patch leads out of the job's folder: {name}", f"paths are relative to {job.folder}"
        )
    return path
