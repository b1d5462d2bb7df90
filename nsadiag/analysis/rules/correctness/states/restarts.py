"""Restarts within a job: what was taken before one, and what came back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import noted, settings_of
from nsadiag.evidence.documents.operations import Operation

Event = tuple[int, Operation]  # with its step


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A model's state that is loaded while a job trains: what was noted before it, and until the first step after it."""

    rank: int
    load: Event
    before: list[Event]
    meanwhile: list[Event]
    step: Event  # of an optimizer, after it
    events: list[Event]  # all of the rank

    def saved(self, kind: str) -> Operation | None:
        """The state of that kind that was saved last, if it is of the moment of the model's that is loaded."""
        saved = next((o for _, o in self.before[::-1] if is_of(o, "save", kind)), None)
        return saved if saved and is_unchanged(saved, self.step[1]) else None

    def created(self, kind: str) -> Operation | None:
        """State that was made anew for the restart, without a place in its schedule to go on from."""
        return next((o for _, o in self.meanwhile[::-1] if is_of(o, "create", kind) and not o.epoch), None)

    def place_of(self, made: Operation | None) -> str:
        """The line of what is made anew; where the first one was made there as well, that at which the others are loaded."""
        lines = {o.place for _, o in self.before if o.kind == "create" and o is not made}
        loads = [o for _, o in self.meanwhile if o.kind == "load"]
        own = made.place if made is not None else ""
        return own if own and own not in lines else (loads or [self.load[1]])[-1].place

    def restores(self, kind: str) -> bool:
        return any(is_of(o, "load", kind) for _, o in self.meanwhile)

    @property
    def old_steps(self) -> list[Operation]:
        return [o for _, o in self.before if o.kind == "step"]

    @property
    def goes_on(self) -> bool:
        """Whether the optimizer that steps after it is one that stepped before."""
        return self.step[1].optimizer in {o.optimizer for o in self.old_steps}

    @property
    def otherwise(self) -> list[str]:
        """Kinds of state that were taken with the model's that is put back, and are not what they were then."""
        taken, back = self.saved("optimizer"), self.step[1]
        if taken is None or back.kind != "back":
            return []
        at = next(n for n, o in self.before if o is taken)
        with_it = {o.of_state for n, o in self.before if n == at and o.kind == "save"}
        anew = [kind for kind in ("scheduler", "scaler") if self.created(kind) and not self.restores(kind)]
        kept = taken.state == back.state or not taken.state
        return [*([] if kept else ["optimizer"]), *(kind for kind in anew if kind in with_it)]


def is_of(operation: Operation, kind: str, of_state: str) -> bool:
    return operation.kind == kind and operation.of_state == of_state


def is_unchanged(then: Operation, now: Operation) -> bool:
    """Whether all parameters of the optimizer that steps now had the same values then."""
    if then.exact and now.exact:
        return then.exact == now.exact
    before = {value.name: value.exact for value in then.values}
    return bool(now.values) and all(before.get(value.name) == value.exact for value in now.values)


def settings(operation: Operation) -> list[dict[str, str]]:
    """Hyperparameters, without the one that a scheduler adds."""
    groups = settings_of(operation)
    return [{name: value for name, value in g.items() if name != "initial_lr"} for g in groups]


def restarts(case: Case) -> list[Restart]:
    """Those of all ranks, each with what was noted around it."""
    return case.once(_all)


def _all(case: Case) -> list[Restart]:
    return [found for rank in case.cell.ranks for found in _of_rank(rank.rank, noted(rank))]


def _of_rank(rank: int, events: list[Event]) -> Iterator[Restart]:
    steps = [n for n, (_, o) in enumerate(events) if o.kind == "step"]
    for number, (step, load) in enumerate(events):
        if not is_of(load, "load", "model") or load.apart:
            continue
        since = max((n for n in steps if n < number), default=None)
        # Older recordings have no entry of the ledger there, and then the next step that was looked at.
        later = next(
            (n for n, (_, o) in enumerate(events) if n > number and o.kind in ("back", "step")), None
        )
        if since is not None and later is not None:
            # A state may be restored before the model's.
            yield Restart(
                rank=rank,
                load=(step, load),
                before=events[:number],
                meanwhile=events[since:later],
                step=events[later],
                events=events,
            )
