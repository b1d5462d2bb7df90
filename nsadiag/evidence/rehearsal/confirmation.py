"""`confirmation.json`: a run's inferred cause, and what a rehearsal of the same command recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nsadiag.evidence.records import Because

# "recorded": nothing had been inferred, and a cause was recorded.
Found = Literal["confirmed", "refuted", "recorded", "cannot"]


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The answer of `nsadiag confirm`, with the recorded chain of causes where there is one."""

    answer: Found
    why: str
    directory: str = ""  # of the rehearsal
    inferred: Because | None = None
    because: Because | None = None

    @property
    def headline(self) -> str:
        """The answer in one line."""
        return f"{self.answer}: {self.why}"

    @property
    def has_recorded(self) -> bool:
        """Whether the rehearsal failed as the run did, and says why."""
        return self.answer != "cannot" and self.because is not None

    def values(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Place, name and value by rank of all that differed along the chain."""
        for link in self.because.chain if self.because else ():
            for value in link.values:
                yield f"{link.at.file}:{link.at.line}", value.name, value.by_rank

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return asdict(self)
