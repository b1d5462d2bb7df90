"""States that a restart within the job loses: of the optimizer or scheduler, or of a model that nothing reads afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.invariants.operations import noted, settings_of, source
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import listed

Event = tuple[int, Operation]  # with its step
Rates = tuple[float, ...]
LEAST_ALIKE = 2  # learning rates


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A model's state that is loaded while a job trains: what was noted before it, and until the first step after it."""

    load: Event
    before: list[Event]
    meanwhile: list[Event]
    step: Event  # of an optimizer, after it

    def saved(self, kind: str) -> Operation | None:
        """The state of that kind that was saved last, if it is of the moment of the model's that is loaded."""
        saved = next((o for _, o in self.before[::-1] if _is(o, "save", kind)), None)
        return saved if saved and _is_unchanged(saved, self.step[1]) else None

    def created(self, kind: str) -> Operation | None:
        """State that was made anew for the restart, without a place in its schedule to go on from."""
        return next((o for _, o in self.meanwhile[::-1] if _is(o, "create", kind) and not o.epoch), None)

    def restores(self, kind: str) -> bool:
        return any(_is(o, "load", kind) for _, o in self.meanwhile)

    @property
    def old_steps(self) -> list[Operation]:
        return [o for _, o in self.before if o.kind == "step"]

    @property
    def goes_on(self) -> bool:
        """Whether the optimizer that steps after it is one that stepped before."""
        return self.step[1].optimizer in {o.optimizer for o in self.old_steps}


def _is(operation: Operation, kind: str, of_state: str) -> bool:
    return operation.kind == kind and operation.of_state == of_state


def _is_unchanged(then: Operation, now: Operation) -> bool:
    """Whether all parameters of the optimizer that steps now had the same values then."""
    before = {value.name: value.exact for value in then.values}
    return bool(now.values) and all(before.get(value.name) == value.exact for value in now.values)


def dropped_states(case: Case) -> Iterator[Draft | Declined]:
    if not ran_well(case.cell):
        return
    each = {rank.rank: noted(rank) for rank in case.cell.ranks}
    for rank, events in each.items():
        for restart in _restarts(events):
            yield from _optimizer_anew(case, rank, restart)
            yield from _schedule_anew(case, rank, restart)
            yield from _epochs_anew(case, rank, restart, events)
        yield from _schedule_repeated(case, rank, events)
        yield from _lost(case, rank, events)
    loads = any(o.kind == "load" for events in each.values() for _, o in events)
    yield Declined(
        "every state that was saved with a model was loaded with it" if loads else "no state was loaded"
    )


def _restarts(events: list[Event]) -> Iterator[Restart]:
    steps = [n for n, (_, o) in enumerate(events) if o.kind == "step"]
    for number, (step, load) in enumerate(events):
        if not _is(load, "load", "model") or load.apart:
            continue
        since = max((n for n in steps if n < number), default=None)
        later = next((n for n in steps if n > number), None)
        if since is not None and later is not None:
            # A state may be restored before the model's.
            yield Restart(
                load=(step, load), before=events[:number], meanwhile=events[since:later], step=events[later]
            )


def _optimizer_anew(case: Case, rank: int, restart: Restart) -> Iterator[Draft]:
    """Another optimizer of the same kind and settings, without the state of the old one, which had been saved."""
    saved, made, (at, step) = restart.saved("optimizer"), restart.created("optimizer"), restart.step
    old = next((o for o in restart.old_steps if o.name == step.name), None)
    if saved is None or old is None or restart.goes_on or restart.restores("optimizer"):
        return
    # Other settings are those of another phase of the training.
    if _settings(step) != _settings(old) or saved.name != step.name:
        return
    yield silent_error(
        case,
        f"The model's state is loaded at step {restart.load[0]}, and {step.name} begins anew with the settings of the first one: its state was saved with the model's, and is not loaded.",
        f"state_dict() of {saved.name} was taken at {saved.place}; the optimizer that steps from step {at} on is another object, and load_state_dict() of no optimizer was called",
        (made.place if made else "") or restart.load[1].place,
        Where(step=at),
        strength=Strength.LIKELY,
        shown_by=rank,
    )


def _settings(operation: Operation) -> list[dict[str, str]]:
    """Hyperparameters, without the one that a scheduler adds."""
    groups = settings_of(operation)
    return [{name: value for name, value in g.items() if name != "initial_lr"} for g in groups]


def _schedule_anew(case: Case, rank: int, restart: Restart) -> Iterator[Draft]:
    """A new scheduler of the same kind that begins at its first step, where the state of the old one had been saved."""
    saved, made = restart.saved("scheduler"), restart.created("scheduler")
    if saved is None or made is None or made.name != saved.name or restart.restores("scheduler"):
        return
    # An optimizer that begins anew as well is the earlier fault, or another phase of the training.
    if not restart.restores("optimizer") and not restart.goes_on:
        return
    yield silent_error(
        case,
        f"The model's state is loaded at step {restart.load[0]}, and {made.name} begins again with its first step: its state was saved with the model's, and is not loaded.",
        f"state_dict() of {saved.name} was taken at {saved.place}; a new one was made at {made.place} with last_epoch=-1, and load_state_dict() of no scheduler was called",
        made.place or restart.load[1].place,
        Where(step=restart.step[0]),
        strength=Strength.LIKELY,
        shown_by=rank,
    )


def _schedule_repeated(case: Case, rank: int, events: list[Event]) -> Iterator[Draft]:
    """Learning rates that repeat their course from its beginning, and go on where the first course was broken off.

    A schedule that is begun again on purpose had come to its end, or has another course.
    """
    last = max((n for n, (_, o) in enumerate(events) if _is(o, "load", "optimizer")), default=0)
    saved = next((n for n, o in events[:last][::-1] if _is(o, "save", "optimizer")), 0)
    at, loaded = events[last] if saved else (0, None)
    since = [o for n, o in events if n >= at]
    made = next((o for o in since[::-1] if _is(o, "create", "scheduler") and not o.epoch), None)
    if loaded is None or made is None or any(_is(o, "load", "scheduler") for o in since):
        return
    first, again = _courses(case.cell.rank(rank))
    common = sorted(first.keys() & again.keys())
    # What is loaded with the optimizer changes the first rates of a warmup.
    alike = {first[n] for n in common[-LEAST_ALIKE:] if first[n] == again[n]}
    if len(alike) < LEAST_ALIKE or not max(first) <= saved <= at or max(again) <= max(first):
        return
    yield silent_error(
        case,
        f"Model and optimizer are restored at step {at} from a state of step {saved}, and the schedule begins with its first step again: the learning rate repeats its course instead of going on.",
        {
            f"learning rates {listed(common, len(common))} steps after the start and after the restart; the last two are the same, {max(first[common[-1]]):.6g} at last": f"{case.cell.rank(rank).source}/replicas.jsonl",
            f"{made.name} made at {made.place} with last_epoch=-1, and load_state_dict() of no scheduler was called": source(
                case, rank
            ),
        },
        loaded.place,
        Where(step=at),
        "Save the scheduler's state with the optimizer's, and load both.",
        strength=Strength.LIKELY,
    )


def _courses(rank: RankEvidence) -> tuple[dict[int, Rates], dict[int, Rates]]:
    """Learning rates by steps since the wrap, of the first two models that were wrapped."""
    found: dict[tuple[int, int], dict[int, Rates]] = {}
    for row in rank.replicas:
        if row.rates and row.since is not None and row.subject is not None:
            found.setdefault(row.subject, {})[row.since] = row.rates
    first, again = [*found.values(), {}, {}][:2]
    return first, again


def _epochs_anew(case: Case, rank: int, restart: Restart, events: list[Event]) -> Iterator[Draft]:
    """A sampler that begins with the epochs of the first one, although the state that is restored had been saved behind them."""
    saved = max((n for n, o in restart.before if _is(o, "save", "optimizer")), default=0)
    orders = {_order(o): n for n, o in reversed(restart.before) if _shuffles(o)}
    later = [
        (n, o) for n, o in events if _shuffles(o) and n >= restart.load[0] and (n, o) not in restart.before
    ]
    if not restart.restores("optimizer") or len(orders) < 2 or len(later) < 2 or saved < max(orders.values()):
        return
    epochs = sorted(epoch for *_, epoch in orders)
    step, first = later[0]
    # Each epoch that follows is one that was trained on, and the first of them is the first.
    if any(_order(o) not in orders for _, o in later) or first.epoch != epochs[0]:
        return
    yield silent_error(
        case,
        f"Model and optimizer are restored at step {restart.load[0]} from a state of step {saved}, and {first.name} begins with epoch {first.epoch} again: each of its {len(later)} epochs repeats the order of one that was trained on before.",
        f"epochs before: {listed(epochs, len(epochs))}; after the restart, with the same seed: {listed((o.epoch for _, o in later), len(later))}",
        first.place or restart.load[1].place,
        Where(step=step),
        "Go on with the epoch that was saved: set_epoch(epoch) with the number of epochs before, and skip the batches that were used.",
        strength=Strength.LIKELY,
        shown_by=rank,
    )


def _shuffles(operation: Operation) -> bool:
    return operation.kind == "epoch" and operation.shuffles


def _order(epoch: Operation) -> tuple[int, int, int, int]:
    """Equal for epochs that shuffle alike."""
    return epoch.seed, epoch.length, epoch.replicas, epoch.epoch


def _lost(case: Case, rank: int, events: list[Event]) -> Iterator[Draft]:
    """A load into a module that was gone at the end of the step, without having run, and from which nothing was copied.

    What the model that trains has anyway is a copy for another use, or is compared.
    """
    for number, (step, load) in enumerate(events):
        after = next((o for _, o in events[number:] if o.kind == "step"), None)
        if not (load.kind == "load" and load.gone and not load.same and after and _is_unchanged(load, after)):
            continue
        yield silent_error(
            case,
            f"A state of {load.given} tensors is loaded into a {load.name} that never runs and is gone at the end of step {step}: the model that trains keeps its own weights.",
            f"{len({value.name for value in after.values})} parameters of the optimizer have the same checksums at the load and before the next optimizer step",
            load.place,
            Where(step=step),
            strength=Strength.LIKELY,
            shown_by=rank,
        )
        return


RULE = Rule(
    family="correctness",
    detected="A restart within the job restores model and optimizer, and the sampler repeats the epochs from before, or the learning rate its course from the beginning; or (`--probes light,invariants`) a model's state is loaded while the job trains, and the optimizer or the schedule begins anew although its state was saved at the same moment; or the state goes into a copy that never runs",
    fix="Load model, optimizer and scheduler from the same checkpoint, into the objects that train.",
    check=dropped_states,
    explained_by=("nonfinite", "empty_loads", "broken_equalities"),
)
