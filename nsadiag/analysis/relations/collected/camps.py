"""Camps: ranks whose stacks stand at the same place, beside those that stand at another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CaptureEvidence
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place
from nsadiag.evidence.user_code import INSTALLED, is_user

# Decorators, which say nothing of what is called.
WRAPPERS = re.compile(
    r"^(wrapper|wrapped_fn|log_wrapper|inner|decorate_context|_fn|_call_impl|_wrapped_call_impl)$"
)


@dataclass(frozen=True, kw_only=True)
class StackPlace:
    """The place at which one rank's working thread stands."""

    call: str | None  # of torch.distributed, or the backward; None where it is in neither
    place: Place | None  # the user's line
    within: str  # the library's function that this line called, with its file; empty where it called none
    library: tuple[str, ...]  # files of libraries on the stack, outermost first
    source: str

    @property
    def words(self) -> str:
        """`in all_reduce, within step (deepspeed/engine.py:2493), at loop.py:412 in train_step`."""
        call = f"in {self.call}" if self.call else "in no call of torch.distributed"
        within = f", within {self.within}" if self.within else ""
        return f"{call}{within}{f', at {locations.short(self.place)}' if self.place else ''}"

    @property
    def key(self) -> tuple[str | None, str, int]:
        """Equal for ranks of one camp."""
        return self.call, self.place.file if self.place else "", self.place.line if self.place else 0


@dataclass(frozen=True, kw_only=True)
class Camp:
    """Ranks that stand at one place."""

    ranks: tuple[int, ...]
    stand: StackPlace  # of the first of them

    @property
    def waits(self) -> bool:
        """Whether they are in a call that needs their peers."""
        return self.stand.call is not None

    @property
    def words(self) -> str:
        """Their place in words."""
        return self.stand.words


def camps(case: Case) -> tuple[Camp, ...]:
    """All of them by the last stack of each rank, the largest first."""
    return case.once(_camps)


def said_of(case: Case, found: tuple[Camp, ...]) -> str:
    """`5 ranks (0, 2-3, 5, 7) in reduce_scatter_tensor, ...; 3 ranks (1, 4, 6) in ...`."""
    parts = []
    for camp in found:
        ranks = case.cell.everyone(camp.ranks)
        parts.append(f"{count(len(ranks), 'rank')} ({case.cell.names(camp.ranks)}) {camp.words}")
    return "; ".join(parts)


def _camps(case: Case) -> tuple[Camp, ...]:
    stands: dict[tuple[str | None, str, int], list[tuple[int, StackPlace]]] = {}
    for rank in case.cell.ranks:
        shown = [capture for capture in rank.captures if capture.stacks]
        if shown:
            stand = place_in_stack(shown[-1])
            stands.setdefault(stand.key, []).append((rank.rank, stand))
    found = [Camp(ranks=tuple(r for r, _ in rows), stand=rows[0][1]) for rows in stands.values()]
    return tuple(sorted(found, key=lambda camp: (-len(case.cell.everyone(camp.ranks)), camp.ranks)))


def place_in_stack(capture: CaptureEvidence) -> StackPlace:
    """The place at which the working thread of a snapshot stands."""
    frames = capture.main_frames
    return StackPlace(
        call=locations.call_in(frames),
        place=locations.of_frames(frames),
        within=_within(frames),
        library=tuple(frame.filename for frame in reversed(frames) if not is_user(frame.filename)),
        source=f"{capture.source}/py_spy.json",
    )


def _within(frames: tuple[StackFrame, ...]) -> str:
    """The outermost function of a library that the user's innermost line has called, wrappers left out."""
    at = next((number for number, frame in enumerate(frames) if is_user(frame.filename)), len(frames))
    called = [frame for frame in frames[:at][::-1] if not WRAPPERS.match(frame.name)]
    if not called:
        return ""
    outer = called[0]
    installed = INSTALLED.match(outer.filename)
    file = outer.filename[installed.end() :] if installed else Path(outer.filename).name
    return f"{outer.name} ({file}:{outer.line})"
