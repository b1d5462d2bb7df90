"""The flow of values through modules in the first steps: which modules are never trained, and where the gradient to them is cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import LEAST, steps_of
from nsadiag.evidence.documents.operations import Call

Key = tuple[
    str, str, int
]  # a module's name, the line that calls it, and the how manieth such call of a step it is


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A module that an optimizer is to train on a rank, and that has no gradient in any recorded step."""

    rank: int
    optimizer: int
    key: Key
    held: int
    steps: dict[int, tuple[Call, ...]]  # all calls of these steps

    @property
    def name(self) -> str:
        return self.key[0]

    @property
    def first(self) -> int:
        return min(self.steps)

    @property
    def exchanges(self) -> bool:
        return by_key(self.steps[self.first])[self.key].exchanges


def idle_modules(case: Case) -> list[Idle]:
    """Those with the most parameters first; only where the same optimizer trains others in each of these steps."""
    return [idle for idle in case.once(_idle) if not idle.exchanges]


def idle_exchanges(case: Case) -> list[Idle]:
    """Collectives that are given what such parameters alone have made."""
    return [idle for idle in case.once(_idle) if idle.exchanges]


def _idle(case: Case) -> list[Idle]:
    found = [
        Idle(rank=rank, optimizer=optimizer, key=key, held=held, steps=steps)
        for (rank, optimizer), steps in flows_of(case).items()
        if len(steps) >= LEAST and all(any(c.graded for c in calls) for calls in steps.values())
        for key, held in _untrained(steps).items()
    ]
    # Of several calls the last one is nearest to the loss.
    found.reverse()
    return sorted(found, key=lambda idle: (-idle.held, idle.rank))


def flows_of(case: Case) -> dict[tuple[int, int], dict[int, tuple[Call, ...]]]:
    """By rank and optimizer, and by step."""
    found: dict[tuple[int, int], dict[int, tuple[Call, ...]]] = {}
    for step in steps_of(case):
        for rank, flows in step.of("flow").items():
            for flow in flows:
                if flow.calls:
                    found.setdefault((rank, flow.optimizer or 0), {})[step.number] = flow.calls
    return found


def _untrained(steps: dict[int, tuple[Call, ...]]) -> dict[Key, int]:
    by_step = [by_key(calls) for calls in steps.values()]
    return {
        key: call.held
        for key, call in by_step[0].items()
        if all(key in each and each[key].held and not each[key].graded for each in by_step)
    }


def by_key(calls: tuple[Call, ...]) -> dict[Key, Call]:
    """In their order."""
    met: Counter[tuple[str, str]] = Counter()
    found: dict[Key, Call] = {}
    for call in calls:
        found[call.name, call.place, met[call.name, call.place]] = call
        met[call.name, call.place] += 1
    return found


def cut_behind(idle: Idle, calls: tuple[Call, ...]) -> tuple[Call, Call] | None:
    """The module's call, and the first one that is given its output without a gradient: another trained module, or a collective."""
    ordered = by_key(calls)
    call = ordered.get(idle.key)
    if call is None:
        return None
    made = {value.exact for value in call.made if value.exact}
    for later in list(ordered.values())[list(ordered).index(idle.key) + 1 :]:
        lost = any(value.exact in made and not value.carries for value in later.given)
        if lost and (later.graded or is_collective(later)):
            return call, later
    return None


def runs_without_graph(idle: Idle) -> bool:
    """Whether what it returns never carries a gradient, although its parameters ask for one."""
    calls = [by_key(calls).get(idle.key) for calls in idle.steps.values()]
    return all(c is not None and c.made and not any(v.carries for v in c.made) for c in calls)


def is_cut_inside(call: Call) -> bool:
    """Whether what it is given carries a gradient, and what it returns does not."""
    return any(v.carries for v in call.given) and bool(call.made) and not any(v.carries for v in call.made)


def is_collective(call: Call) -> bool:
    """Whether it is no module; in older recordings, what returns nothing and has no parameters."""
    return call.exchanges or (not call.made and not call.held)
