"""A change of source files as values: text before and after, the lines that stay, and the unified diff."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FileChange:
    """One file, by its path below the job's folder."""

    path: str
    before: str
    after: str

    @functools.cached_property
    def kept(self) -> dict[int, int]:
        """Lines that stay as they are: the number before, and the number after."""
        old, new = self.before.splitlines(), self.after.splitlines()
        blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        return {a + n + 1: b + n + 1 for a, b, size in blocks for n in range(size)}

    @functools.cached_property
    def added(self) -> frozenset[int]:
        """Lines of the new text that are new there, or changed."""
        return frozenset(range(1, len(self.after.splitlines()) + 1)) - set(self.kept.values())

    def diff(self) -> Iterator[str]:
        """Lines of the unified diff, as `git apply` takes it."""
        old, new = (text.splitlines(keepends=True) for text in (self.before, self.after))
        for line in difflib.unified_diff(old, new, self._side("a", old), self._side("b", new)):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

    def _side(self, prefix: str, text: list[str]) -> str:
        """The name of one side, as git has it: a file without a line is taken for one that is not there."""
        return f"{prefix}/{self.path}" if text else "/dev/null"


@dataclass(frozen=True)
class Change:
    """All files that a patch changes."""

    files: tuple[FileChange, ...]

    @classmethod
    def of(cls, before: Mapping[str, str], after: Mapping[str, str]) -> Change:
        """Every file whose text differs; a new one was empty before."""
        paths = sorted(path for path in after if before.get(path, "") != after[path])
        return cls(tuple(FileChange(path, before.get(path, ""), after[path]) for path in paths))

    def diff(self) -> str:
        return "".join(line for file in self.files for line in file.diff())

    def kept_line(self, path: str, line: int) -> int | None:
        """The number that a line of the old text has in the new one; None where it was changed or removed."""
        file = self._file(path)
        return file.kept.get(line) if file else line

    def is_new(self, path: str, line: int) -> bool:
        """Whether the patch wrote that line of the new text."""
        file = self._file(path)
        return file is not None and line in file.added

    def _file(self, path: str) -> FileChange | None:
        return next((file for file in self.files if file.path == path), None)
