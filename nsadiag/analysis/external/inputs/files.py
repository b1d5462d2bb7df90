"""One file of evidence, wherever it lies, and the reasons for which others are not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nsadiag.evidence.phrases import count

MOST_NAMED = 5  # files that were not read for one reason


class InputFile(NamedTuple):
    """A file, and what it is called: a member of an archive lies elsewhere than its name says."""

    name: str  # by which reports cite it
    path: str
    root: str  # the directory that links may not leave
    asked: bool = False  # named by the person, not found in a folder

    @property
    def on_disk(self) -> Path:
        return Path(self.path)


@dataclass
class Refusals:
    """Files that were not read, or not to their end, by the reason."""

    by_reason: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, why: str) -> None:
        names = self.by_reason.setdefault(why, [])
        if name not in names:
            names.append(name)

    def gaps(self) -> Iterator[str]:
        """One line a file; of many with the same reason the first, and how many more there are."""
        for why, names in self.by_reason.items():
            yield from (f"{name}: {why}" for name in names[:MOST_NAMED])
            if (more := len(names) - MOST_NAMED) > 0:
                yield f"{count(more, 'more file')}: {why}"
