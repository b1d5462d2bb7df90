"""The job that is to be repaired: how it was started, the folder that holds its sources, and copies of that with a change."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nsadiag.errors import UsageError
from nsadiag.repair.change import Change
from nsadiag.repair.selection import Selection, selected

SIZE = ("--nproc-per-node", "--nproc_per_node")


@dataclass(frozen=True, kw_only=True)
class Job:
    """`sources`: by path below the folder, the text of the files that the failed run named."""

    command: tuple[str, ...]
    cwd: Path
    folder: Path
    ranks: int
    sources: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def selection(self) -> Selection:
        """The part of the folder that is copied. Raises MachineError where the job's own part is too large."""
        words = (part for word in self.command for part in (word, word.partition("=")[2]) if part)
        named = {Path(os.path.normpath(self.cwd / word)) for word in words} - {self.cwd, *self.cwd.parents}
        return selected(self.folder, {*named, *(self.folder / path for path in self.sources)})

    def command_of(self, ranks: int, folder: Path) -> list[str]:
        """The launcher line for so many ranks, with paths below the folder led into a copy of it."""
        words, is_size = list[str](), False
        for word in self.command:
            name, equals, _ = word.partition("=")
            sized = f"{name}={ranks}" if equals and name in SIZE else word
            words.append(str(ranks) if is_size else self.led(sized, folder))
            is_size = word in SIZE
        return words

    def led(self, text: str, folder: Path) -> str:
        """A word, or paths with colons between them, with those below the job's folder led to another one."""
        here = str(self.folder)
        return os.pathsep.join(
            f"{folder}{part.removeprefix(here)}" if part == here or part.startswith(f"{here}/") else part
            for part in text.split(os.pathsep)
        )


def text_of(path: Path) -> str | None:
    """A source of the user's; None where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return None


def write_change(job: Job, change: Change) -> None:
    """Applies a change to the user's files. Raises UsageError, before any is written, where one is not as it was."""
    for file in change.files:
        if (text_of(job.folder / file.path) or "") != file.before:
            raise UsageError(f"{job.folder / file.path} has changed meanwhile", "run fix again")
    for file in change.files:
        (job.folder / file.path).write_text(file.after)


def check_sized(command: tuple[str, ...]) -> None:
    """Raises UsageError where the line does not say how many ranks it starts."""
    if not any(word.partition("=")[0] in SIZE for word in command):
        raise UsageError(
            "the run's command does not say how many ranks it starts",
            "fix needs a line of torchrun's with --nproc-per-node",
        )


@contextlib.contextmanager
def copied(job: Job, texts: Mapping[str, str]) -> Iterator[Path]:
    """A copy of the folder in which these files have another text; it is gone afterwards. Raises MachineError."""
    with tempfile.TemporaryDirectory(prefix="nsadiag-fix-") as room:
        copy = Path(room).resolve() / job.folder.name
        with copied_to(job, texts, copy):
            yield copy


@contextlib.contextmanager
def copied_to(job: Job, texts: Mapping[str, str], copy: Path) -> Iterator[None]:
    """The same at a place that is known beforehand. Raises MachineError."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        # The copy itself may lie below the folder, as where a job lies in the folder of temporary files.
        around = {name for name in names if Path(folder, name) in copy.parents}
        return around | job.selection.ignored(folder, names)

    shutil.copytree(job.folder, copy, symlinks=True, ignore=ignored)
    (copy / job.cwd.relative_to(job.folder)).mkdir(parents=True, exist_ok=True)
    try:
        for path, text in texts.items():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_text(text)
        yield
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def texts_of(change: Change | None) -> dict[str, str]:
    """By path, the files that a change makes other."""
    return {file.path: file.after for file in change.files} if change else {}
