"""The flow of values through modules in the first steps: which modules are never trained, and where the gradient to them is cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import LEAST, steps_of
from nsadiag.evidence.documents.operations import Call
from nsadiag.evidence.spans import listed

Key = tuple[
    str, str, int
]  # a module's name, the line that calls it, and its number among such calls of a step
Calls = dict[Key, Call]  # of a step, in their order


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A module that an optimizer is to train on a rank, and that has no gradient in any recorded step."""

    rank: int
    optimizer: int
    key: Key
    held: int
    steps: dict[int, Calls]

    @property
    def name(self) -> str:
        return self.key[0]

    @property
    def place(self) -> str:
        return self.key[1]

    @property
    def first(self) -> int:
        return min(self.steps)

    @property
    def calls(self) -> list[Call]:
        """Its own, by step."""
        return [calls[self.key] for calls in self.steps.values()]

    @property
    def steps_listed(self) -> str:
        return listed(self.steps, len(self.steps))


def idle_modules(case: Case) -> list[Idle]:
    """Those with the most parameters first; only where the same optimizer trains others in each of these steps."""
    return [idle for idle in case.once(_idle) if not idle.calls[0].exchanges]


def idle_exchanges(case: Case) -> list[Idle]:
    """Collectives that are given what such parameters alone have made."""
    return [idle for idle in case.once(_idle) if idle.calls[0].exchanges]


def _idle(case: Case) -> list[Idle]:
    found = [
        Idle(rank=rank, optimizer=optimizer, key=key, held=call.held, steps=steps)
        for (rank, optimizer), steps in flows_of(case).items()
        if len(steps) >= LEAST and all(any(c.graded for c in calls.values()) for calls in steps.values())
        for key, call in steps[min(steps)].items()
        if all(key in calls and calls[key].held and not calls[key].graded for calls in steps.values())
    ]
    # Of several calls the last one is nearest to the loss.
    found.reverse()
    return sorted(found, key=lambda idle: (-idle.held, idle.rank))


def flows_of(case: Case) -> dict[tuple[int, int], dict[int, Calls]]:
    """By rank and optimizer, and by step."""
    return case.once(_flows)


def _flows(case: Case) -> dict[tuple[int, int], dict[int, Calls]]:
    found: dict[tuple[int, int], dict[int, Calls]] = defaultdict(dict)
    for step in steps_of(case):
        for rank, flows in step.of("flow").items():
            for flow in flows:
                if flow.calls:
                    found[rank, flow.optimizer or 0][step.number] = _by_key(flow.calls)
    return found


def _by_key(calls: tuple[Call, ...]) -> Calls:
    met: Counter[tuple[str, str]] = Counter()
    found: Calls = {}
    for call in calls:
        found[call.name, call.place, met[call.name, call.place]] = call
        met[call.name, call.place] += 1
    return found


def cut_behind(idle: Idle, calls: Calls) -> tuple[Call, Call] | None:
    """The module's call, and the first one that is given its output without a gradient: another trained module, or a collective."""
    call = calls[idle.key]
    made = {value.exact for value in call.made if value.exact}
    for later in list(calls.values())[list(calls).index(idle.key) + 1 :]:
        lost = any(value.exact in made and not value.carries for value in later.given)
        if lost and (later.graded or is_collective(later)):
            return call, later
    return None


def is_cut_inside(call: Call) -> bool:
    """Whether what it is given carries a gradient, and what it returns does not."""
    return any(v.carries for v in call.given) and bool(call.made) and not any(v.carries for v in call.made)


def is_collective(call: Call) -> bool:
    """Whether it is no module; in older recordings, what returns nothing and has no parameters."""
    return call.exchanges or (not call.made and not call.held)
