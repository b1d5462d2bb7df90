"""Registrations (hooks, handlers) that grow with every step, and the line that makes them."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.documents.training import Registered
from nsadiag.evidence.records import Place

MIN_STEPS = 8  # that registered there
MOST_OF_STEPS = 0.5  # so large a part of all steps did
TIMES = 4  # as many live at the end as after the first steps
WORDS = {
    "addHandler": "logging handlers",
    "add_param_group": "groups of parameters",
    "register_hook": "hooks on tensors",
    "register_post_accumulate_grad_hook": "gradient hooks",
}


@dataclass(frozen=True, kw_only=True)
class Pile:
    """`what` names it in the plural; the numbers are of what lives after a step."""

    what: str
    place: Place
    first_step: int
    first: int
    last_step: int
    last: int
    made: int

    @property
    def told(self) -> str:
        removed = (
            "none removed" if self.last == self.made else f"{self.made - self.last:,} of {self.made:,} gone"
        )
        return (
            f"{self.what} registered at {locations.short(self.place)}: {self.first:,} after step {self.first_step}, "
            f"{self.last:,} at step {self.last_step}, {removed}"
        )


def largest_pile(rank: RankEvidence, steps: int) -> Pile | None:
    """The most numerous of what grew all along the rank's `steps`."""
    by_line: dict[tuple[str, str], list[Registered]] = {}
    for row in rank.piles:
        by_line.setdefault((row.kind, row.place), []).append(row)
    found = [p for (kind, line), rows in by_line.items() if (p := _grown(kind, line, rows, steps))]
    return max(found, key=lambda p: p.last, default=None)


def _grown(kind: str, line: str, rows: list[Registered], steps: int) -> Pile | None:
    # At exit what they hung on may be gone.
    first, last, at = rows[0], max(rows, key=lambda row: row.alive), locations.of_text(line)
    # Between two powers of two nothing is written: of a job that was ended that is half of its steps.
    if at is None or last.steps < max(MIN_STEPS, MOST_OF_STEPS * steps / 2):
        return None
    if last.alive < TIMES * max(first.alive, 1):
        return None
    return Pile(
        what=WORDS.get(kind)
        or kind.removeprefix("register_").removeprefix("module_").replace("_", " ") + "s",
        place=at,
        first_step=first.step + 1,
        first=first.alive,
        last_step=last.step + 1,
        last=last.alive,
        made=last.made,
    )
