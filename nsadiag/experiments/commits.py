"""The commits of a user's git checkout, each in a worktree of our own: the user's files are never touched."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsadiag.deadlines import programs
from nsadiag.errors import MachineError, UsageError

GIT_S = 600.0  # for one command: a checkout of a large tree over a network file system
ASK_S = 1.0  # before a job is started
UNLOCK_S = 5.0  # for git to remove its locks when it is ended


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One point of a history."""

    sha: str
    subject: str

    @property
    def label(self) -> str:
        return self.sha[:12]


def code_at(folder: Path) -> dict[str, str | bool | None] | None:
    """`commit` of the checkout that the folder is in, and whether tracked files are `changed` there (None where git took too long to say).

    None outside of a checkout, and where git does not answer.
    """
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return None
    try:
        commit = _asked(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    except (OSError, TimeoutError):
        return None
    if commit.returncode:
        return None
    with contextlib.suppress(OSError, TimeoutError):
        told = _asked(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
        return {
            "commit": commit.stdout.strip(),
            "changed": bool(told.stdout) if not told.returncode else None,
        }
    return {"commit": commit.stdout.strip(), "changed": None}


def _asked(folder: Path, *words: str) -> programs.Finished:
    """A question before a job's start: it takes no lock, starts no program that the checkout names, and nobody waits for it."""
    line = ("git", "--no-optional-locks", "-C", str(folder), "-c", "core.fsmonitor=false", *words)
    return programs.run(line, seconds=ASK_S, grace_s=0.2)


def top_of(folder: Path) -> Path:
    """The checkout that the folder is in. Raises UsageError."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    except UsageError:
        raise UsageError(
            f"{folder} is in no git checkout", "go to the checkout whose commits are meant"
        ) from None


def commits_between(top: Path, span: str) -> list[Commit]:
    """GOOD, and what leads from it to BAD along first parents, oldest first. Raises UsageError."""
    good, dots, bad = span.partition("..")
    if not (good and dots and bad) or bad.startswith("."):
        raise UsageError(f"--git is {span!r}", "give GOOD..BAD, as in --git v1.2..HEAD")
    first, last = (_commit(top, name) for name in (good, bad))
    rows = _git(top, "rev-list", "--reverse", "--first-parent", "--format=%H %s", f"{first}..{last}")
    lines = [row for row in rows.splitlines() if not row.startswith("commit ")]
    if not lines or not _is_ancestor(top, first, last):
        raise UsageError(
            f"no commits lead from {good} to {bad}", f"is {good} the older one? git log --oneline {span}"
        )
    subject = _git(top, "log", "-1", "--format=%s", first).strip()
    return [Commit(sha=first, subject=subject), *(Commit(sha=r[:40], subject=r[41:]) for r in lines)]


def commit_of(top: Path, name: str) -> Commit:
    """The commit that a name stands for. Raises UsageError."""
    sha = _commit(top, name)
    return Commit(sha=sha, subject=_git(top, "log", "-1", "--format=%s", sha).strip())


def _commit(top: Path, name: str) -> str:
    try:
        return _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except UsageError:
        raise UsageError(f"no such commit: {name}", f"git log --oneline -20, in {top}") from None


def _is_ancestor(top: Path, first: str, last: str) -> bool:
    command = ["git", "-C", str(top), "merge-base", "--is-ancestor", first, last]
    return programs.run(command, seconds=GIT_S, grace_s=UNLOCK_S).returncode == 0


def _git(folder: Path, *words: str) -> str:
    try:
        # A hook of the user's would act on a checkout that is not his.
        line = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *words]
        done = programs.run(line, seconds=GIT_S, grace_s=UNLOCK_S)
    except FileNotFoundError:
        raise MachineError("git is not installed", "--git needs it") from None
    except TimeoutError as error:
        raise MachineError(
            f"{error}: git {words[0]}", f"try it in {folder}: a filter or a server may hang"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UsageError(f"git {words[0]}: {said}", f"in {folder}")
    return done.stdout


class Worktree:
    """One checkout beside the user's, that goes from commit to commit."""

    def __init__(self, top: Path, path: Path) -> None:
        self.top, self.path = top, path

    def go_to(self, commit: Commit) -> None:
        """Nothing that an earlier commit's job wrote stays behind."""
        if not (self.path / ".git").exists():
            _git(self.top, "worktree", "add", "--quiet", "--detach", str(self.path), commit.sha)
            return
        _git(self.path, "checkout", "--quiet", "--detach", "--force", commit.sha)
        _git(self.path, "clean", "--quiet", "-ffdx")

    def moved(self, text: str) -> str:
        """A word of a command, or a variable, with paths into the user's checkout led here."""
        here, there = str(self.top), str(self.path)
        parts = text.split(os.pathsep)
        return os.pathsep.join(
            there + part[len(here) :] if part == here or part.startswith(here + "/") else part
            for part in parts
        )

    def environment(self, variables: Sequence[str] = ("PYTHONPATH",)) -> dict[str, str]:
        """Variables that lead Python into the user's checkout, led here."""
        return {name: self.moved(os.environ[name]) for name in variables if name in os.environ}


@contextlib.contextmanager
def worktree(top: Path) -> Iterator[Worktree]:
    """A worktree that is gone afterwards, from git's list as well."""
    with tempfile.TemporaryDirectory(prefix="nsadiag-commit-") as folder:
        opened = Worktree(top, Path(folder).resolve() / top.name)
        try:
            yield opened
        finally:
            with contextlib.suppress(UsageError, MachineError):
                _git(top, "worktree", "remove", "--force", str(opened.path))
                _git(top, "worktree", "prune")
