"""States that a restart within the job loses: of the optimizer or scheduler, or of a model that nothing reads afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.invariants.operations import source
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Place, Strength, Where

Event = tuple[int, Operation]  # with its step


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A model's state that is loaded while a job trains: what was noted before it, and until the first step after it."""

    load: Event
    before: list[Event]
    meanwhile: list[Event]
    step: Event  # of an optimizer, after it

    def saved(self, kind: str) -> Operation | None:
        """The state of that kind that was saved last."""
        return next((o for _, o in self.before[::-1] if _is(o, "save", kind)), None)

    def is_of(self, saved: Operation) -> bool:
        """Whether the model's state that is loaded is the one of the moment at which that was saved, and no earlier one."""
        then, now = ({v.name: v.exact for v in o.values} for o in (saved, self.step[1]))
        return bool(now) and all(then.get(name) == exact for name, exact in now.items())

    def created(self, kind: str) -> Operation | None:
        """State that was made anew for the restart, without a place in its schedule to go on from."""
        return next((o for _, o in self.meanwhile[::-1] if _is(o, "create", kind) and not o.epoch), None)

    def restores(self, kind: str) -> bool:
        return any(_is(o, "load", kind) for _, o in self.meanwhile)

    @property
    def steps_before(self) -> list[Event]:
        return [(n, o) for n, o in self.before if o.kind == "step"]


def _is(operation: Operation, kind: str, of_state: str) -> bool:
    return operation.kind == kind and operation.of_state == of_state


def dropped_states(case: Case) -> Iterator[Draft | Declined]:
    if case.cell.stopped == "hang" or any(rank.exception for rank in case.cell.ranks):
        return
    each = {rank.rank: _events(rank) for rank in case.cell.ranks}
    for rank, events in each.items():
        for restart in _restarts(events):
            yield from _optimizer_anew(case, rank, restart)
            yield from _schedule_anew(case, rank, restart)
            yield from _epochs_anew(case, rank, restart, events)
        yield from _lost(case, rank, events)
    loads = sum(o.kind == "load" for events in each.values() for _, o in events)
    yield Declined(f"what was saved with a model was loaded with it, in {loads} loads of a state")


def _events(rank: RankEvidence) -> list[Event]:
    return [(row.step, o) for row in rank.observed for o in row.operations]


def _restarts(events: list[Event]) -> Iterator[Restart]:
    for number, (step, load) in enumerate(events):
        before = events[:number]
        if load.kind != "load" or load.of_state != "model" or load.apart:
            continue
        later = next((n for n, (_, o) in enumerate(events[number:], number) if o.kind == "step"), None)
        if later is not None and any(o.kind == "step" for _, o in before):
            # A state may be restored before the model's.
            since = max(n for n, (_, o) in enumerate(before) if o.kind == "step")
            yield Restart(load=(step, load), before=before, meanwhile=events[since:later], step=events[later])


def _optimizer_anew(case: Case, rank: int, restart: Restart) -> Iterator[Draft]:
    """Another optimizer of the same kind and settings, without the state of the old one, which had been saved."""
    saved, made, (at, step) = restart.saved("optimizer"), restart.created("optimizer"), restart.step
    old = [o for _, o in restart.steps_before if o.name == step.name]
    known = {o.optimizer for _, o in restart.steps_before}
    if saved is None or not old or step.optimizer in known or restart.restores("optimizer"):
        return
    # Other settings are those of another phase of the training.
    if _settings(step) != _settings(old[0]) or saved.name != step.name or not restart.is_of(saved):
        return
    yield _draft(
        case,
        f"The model's state is loaded at step {restart.load[0]}, and {step.name} begins anew with the settings of the first one: its state was saved with the model's, and is not loaded.",
        at,
        locations.of_text(made.place) if made else None,
        restart.load[1],
        f"state_dict() of {saved.name} was taken at {saved.place}; the optimizer that steps from step {at} on is another object, and load_state_dict() of no optimizer was called",
        rank,
    )


def _settings(operation: Operation) -> list[set[str]]:
    """Hyperparameters, without the one that a scheduler adds."""
    return [{w for w in text.split() if not w.startswith("initial_lr=")} for text in operation.settings]


def _schedule_anew(case: Case, rank: int, restart: Restart) -> Iterator[Draft]:
    """A new scheduler of the same kind that begins at its first step, where the state of the old one had been saved."""
    saved, made, (at, step) = restart.saved("scheduler"), restart.created("scheduler"), restart.step
    if saved is None or made is None or made.name != saved.name or restart.restores("scheduler"):
        return
    if not restart.is_of(saved):
        return
    # An optimizer that begins anew as well is the earlier fault, or another phase of the training.
    if not restart.restores("optimizer") and step.optimizer not in {
        o.optimizer for _, o in restart.steps_before
    }:
        return
    yield _draft(
        case,
        f"The model's state is loaded at step {restart.load[0]}, and {made.name} begins again with its first step: its state was saved with the model's, and is not loaded.",
        at,
        locations.of_text(made.place),
        restart.load[1],
        f"state_dict() of {saved.name} was taken at {saved.place}; a new one was made at {made.place} with last_epoch=-1, and load_state_dict() of no scheduler was called",
        rank,
    )


def _epochs_anew(case: Case, rank: int, restart: Restart, events: list[Event]) -> Iterator[Draft]:
    """A sampler that begins with the epochs of the first one, although the state that is restored had been saved behind them."""
    saved = max((n for n, o in restart.before if _is(o, "save", "optimizer")), default=0)
    orders = {(o.seed, o.length, o.replicas, o.epoch): n for n, o in reversed(restart.before) if _shuffles(o)}
    later = [
        (n, o) for n, o in events if _shuffles(o) and n >= restart.load[0] and (n, o) not in restart.before
    ]
    if not restart.restores("optimizer") or len(orders) < 2 or len(later) < 2 or saved < max(orders.values()):
        return
    again = [(n, o) for n, o in later if (o.seed, o.length, o.replicas, o.epoch) in orders]
    # Each epoch that follows is one that was trained on, and the first of them is the first.
    if len(again) < len(later) or again[0][1].epoch != min(key[3] for key in orders):
        return
    step, epoch = again[0]
    yield _draft(
        case,
        f"Model and optimizer are restored at step {restart.load[0]} from a state of step {saved}, and {epoch.name} begins with epoch {epoch.epoch} again: each of its {len(later)} epochs repeats the order of one that was trained on before.",
        step,
        locations.of_text(epoch.place),
        restart.load[1],
        f"epochs before: {', '.join(str(key[3]) for key in sorted(orders, key=lambda k: k[3]))}; after the restart, with the same seed: {', '.join(str(o.epoch) for _, o in later)}",
        rank,
        fix="Go on with the epoch that was saved: set_epoch(epoch) with the number of epochs before, and skip the batches that were used.",
    )


def _shuffles(operation: Operation) -> bool:
    return operation.kind == "epoch" and operation.shuffles


def _lost(case: Case, rank: int, events: list[Event]) -> Iterator[Draft]:
    """A load into a module that was gone at the end of the step, without having run, and from which nothing was copied."""
    for number, (step, load) in enumerate(events):
        after = next((o for _, o in events[number:] if o.kind == "step"), None)
        if not (load.kind == "load" and load.gone and load.values) or after is None:
            continue
        then, now = ({v.name: v.exact for v in o.values} for o in (load, after))
        if not now or any(then.get(name) != exact for name, exact in now.items()):
            continue
        yield _draft(
            case,
            f"A state of {load.given} tensors is loaded into a {load.name} that never runs and is gone at the end of step {step}: the model that trains keeps its own weights.",
            step,
            locations.of_text(load.place),
            load,
            f"{len(now)} parameters of the optimizer have the same checksums at the load and before the next optimizer step",
            rank,
        )
        return


def _draft(
    case: Case,
    summary: str,
    step: int,
    place: Place | None,
    load: Operation,
    claim: str,
    rank: int,
    fix: str | None = None,
) -> Draft:
    return Draft(
        strength=Strength.LIKELY,
        summary=summary,
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=step).at(place or locations.of_text(load.place)),
        evidence={claim: source(case, rank)},
        fix=fix,
    )


RULE = Rule(
    name="dropped_states",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="A restart within the job restores model and optimizer, and the sampler repeats the epochs from before; or (`--probes light,invariants`) a model's state is loaded while the job trains, and the optimizer or the schedule begins anew although its state was saved at the same moment; or the state goes into a copy that never runs",
    fix="Load model, optimizer and scheduler from the same checkpoint, into the objects that train.",
    check=dropped_states,
    explained_by=("nonfinite", "empty_loads", "broken_equalities"),
    confused_with=("healthy",),
)
