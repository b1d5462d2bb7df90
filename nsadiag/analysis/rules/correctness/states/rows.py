"""Rows on states: of the optimizer, the schedule or the sampler that begins anew, and of a model that nothing reads afterwards."""

from __future__ import annotations

import itertools

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.relations.invariants.operations import noted, settings_of, source
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.rules.correctness.expectation import Expectation, Violation, rules_of
from nsadiag.analysis.rules.correctness.states.restarts import (
    Event,
    Restart,
    is_of,
    is_unchanged,
    restarts,
    settings,
)
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import listed

Rates = tuple[float, ...]
Order = tuple[int, int, int, int]  # equal for epochs that shuffle alike
LEAST_ALIKE = 2  # learning rates
OVER = 0.02  # of the first rate


def _of_restarts(case: Case) -> list[Restart]:
    return restarts(case) if ran_well(case.cell) else []


def _optimizer_anew(case: Case) -> Violation | str | None:
    """Another optimizer of the same kind and settings, without the state of the old one, which had been saved."""
    for restart in _of_restarts(case):
        saved, made, (at, step) = restart.saved("optimizer"), restart.created("optimizer"), restart.step
        old = next((o for o in restart.old_steps if o.name == step.name), None)
        if saved is None or old is None or restart.goes_on or restart.restores("optimizer"):
            continue
        # Other settings are those of another phase of the training.
        if settings(step) == settings(old) and saved.name == step.name:
            return Violation(
                at=restart.place_of(made),
                where=Where(step=at),
                words={"load": restart.load[0], "name": step.name, "saved": saved, "at": at},
                shown_by=restart.rank,
            )
    return "every optimizer's state that was saved with a model was loaded with it" if _loads(case) else None


def _loads(case: Case) -> bool:
    return any(noted(rank, "load") for rank in case.cell.ranks)


def _schedule_anew(case: Case) -> Violation | str | None:
    """A new scheduler of the same kind and numbers that begins at its first step, where the state of the old one had been saved."""
    for restart in _of_restarts(case):
        saved, made = restart.saved("scheduler"), restart.created("scheduler")
        if saved is None or made is None or made.name != saved.name or restart.restores("scheduler"):
            continue
        # Another course is another phase's; an optimizer that begins anew as well is the earlier fault, or another phase.
        goes_on = restart.restores("optimizer") or restart.goes_on
        if made.state == saved.state and goes_on and not _is_over(saved):
            return Violation(
                at=restart.place_of(made),
                where=Where(step=restart.step[0]),
                words={"load": restart.load[0], "name": made.name, "saved": saved, "made": made},
                shown_by=restart.rank,
            )
    return None


def _is_over(schedule: Operation) -> bool:
    """Whether it had come to its end, as far as rates tell: then it is begun again on purpose."""
    groups = [group for group in settings_of(schedule) if {"lr", "initial_lr"} <= group.keys()]
    return bool(groups) and all(float(g["lr"]) <= OVER * float(g["initial_lr"]) for g in groups)


def _schedule_repeated(case: Case) -> Violation | str | None:
    """Learning rates that repeat their course from its beginning, and go on where the first course was broken off.

    A schedule that is begun again on purpose had come to its end, or has another course.
    """
    for rank in case.cell.ranks if ran_well(case.cell) else ():
        events = noted(rank)
        last = max((n for n, (_, o) in enumerate(events) if is_of(o, "load", "optimizer")), default=0)
        saved = next((n for n, o in events[:last][::-1] if is_of(o, "save", "optimizer")), 0)
        at, loaded = events[last] if saved else (0, None)
        since = [o for n, o in events if n >= at]
        made = next((o for o in since[::-1] if is_of(o, "create", "scheduler") and not o.epoch), None)
        if loaded is None or made is None or any(is_of(o, "load", "scheduler") for o in since):
            continue
        first, again = _courses(rank)
        common = sorted(first.keys() & again.keys())
        # What is loaded with the optimizer changes the first rates of a warmup.
        alike = {first[n] for n in common[-LEAST_ALIKE:] if first[n] == again[n]}
        if len(alike) < LEAST_ALIKE or not max(first) <= saved <= at or max(again) <= max(first):
            continue
        rates = f"learning rates {listed(common, len(common))} steps after the start and after the restart; the last two are the same, {max(first[common[-1]]):.6g} at last"
        anew = f"{made.name} made at {made.place} with last_epoch=-1, and load_state_dict() of no scheduler was called"
        return Violation(
            at=loaded.place,
            where=Where(step=at),
            words={"at": at, "saved": saved},
            more={rates: f"{rank.source}/replicas.jsonl", anew: source(case, rank.rank)},
        )
    return None


def _courses(rank: RankEvidence) -> tuple[dict[int, Rates], dict[int, Rates]]:
    """Learning rates by steps since the wrap, of the first two models that were wrapped."""
    found: dict[tuple[int, int], dict[int, Rates]] = {}
    for row in rank.replicas:
        if row.rates and row.since is not None and row.subject is not None:
            found.setdefault(row.subject, {})[row.since] = row.rates
    first, again = [*found.values(), {}, {}][:2]
    return first, again


def _epochs(restart: Restart) -> tuple[list[Event], list[Event]]:
    """Epochs of shuffling samplers before the restart and after it, where the optimizer's state is restored, too."""
    epochs = [(n, o) for n, o in restart.events if o.kind == "epoch" and o.shuffles]
    before = [each for each in epochs if each in restart.before]
    later = [(n, o) for n, o in epochs if (n, o) not in before and n >= restart.load[0]]
    return (before, later) if restart.restores("optimizer") else ([], [])


def _saved_at(restart: Restart) -> int:
    return max((n for n, o in restart.before if is_of(o, "save", "optimizer")), default=0)


def _order(epoch: Operation) -> Order:
    return epoch.seed, epoch.length, epoch.replicas, epoch.epoch


def _epochs_repeated(case: Case) -> Violation | str | None:
    """A sampler that begins with the epochs of the first one, although the state that is restored had been saved behind them."""
    for restart in _of_restarts(case):
        before, later = _epochs(restart)
        orders, saved = {_order(o): n for n, o in before[::-1]}, _saved_at(restart)
        if len(orders) < 2 or len(later) < 2 or saved < max(orders.values()):
            continue
        epochs = sorted(epoch for *_, epoch in orders)
        step, first = later[0]
        # Each epoch that follows is one that was trained on, and the first of them is the first.
        if all(_order(o) in orders for _, o in later) and first.epoch == epochs[0]:
            return Violation(
                at=first.place or restart.load[1].place,
                where=Where(step=step),
                words={
                    "load": restart.load[0],
                    "saved": saved,
                    "name": first.name,
                    "epoch": first.epoch,
                    "number": len(later),
                    "before": listed(epochs, len(epochs)),
                    "later": listed((o.epoch for _, o in later), len(later)),
                },
                shown_by=restart.rank,
            )
    return None


def _other_epoch(case: Case) -> Violation | str | None:
    """An epoch that was broken off and is gone on with in the order of another one.

    It is the same epoch by its length: what was trained of it before and after the restart is a whole one.
    """
    for restart in _of_restarts(case):
        before, later = _epochs(restart)
        saved = _saved_at(restart)
        if len(before) < 2 or len(later) < 2 or not before[-1][0] < saved:
            continue
        whole = {two - one for (one, _), (two, _) in itertools.pairwise(before)}
        (begun, broken), (step, resumed), (following, _) = before[-1], later[0], later[1]
        rest = following - step
        if whole == {saved - begun + rest} and _is_other_order(broken, resumed):
            return Violation(
                at=resumed.place or restart.load[1].place,
                where=Where(step=step),
                words={
                    "load": restart.load[0],
                    "saved": saved,
                    "done": saved - begun,
                    "broken": broken.epoch,
                    "rest": rest,
                    "resumed": resumed.epoch,
                    "whole": min(whole),
                },
                shown_by=restart.rank,
            )
    return None


def _is_other_order(one: Operation, other: Operation) -> bool:
    """Whether the same samplers shuffle otherwise for it."""
    return _order(one)[:-1] == _order(other)[:-1] and one.epoch != other.epoch


def _loaded_beside(case: Case) -> Violation | str | None:
    """A load into a module that was gone at the end of the step, without having run, and from which nothing was copied.

    What the model that trains has anyway is a copy for another use, or is compared.
    """
    for rank in case.cell.ranks if ran_well(case.cell) else ():
        events = noted(rank)
        for number, (step, load) in enumerate(events):
            after = next((o for _, o in events[number:] if o.kind == "step"), None)
            beside = load.kind == "load" and load.gone and not load.same
            if beside and after and is_unchanged(load, after):
                words = {
                    "given": load.given,
                    "name": load.name,
                    "step": step,
                    "number": len({v.name for v in after.values}),
                }
                return Violation(at=load.place, where=Where(step=step), words=words, shown_by=rank.rank)
    return None


def _empty_load(case: Case) -> Violation | str | None:
    if not ran_well(case.cell):
        return None
    loads = [(r.rank, step, o) for r in case.cell.ranks for step, o in noted(r, "load")]
    fits = {(rank, o.name) for rank, _, o in loads if o.unexpected < o.given}
    # A load that is retried with other names and then fits is fine.
    empty = [
        (rank, step, o)
        for rank, step, o in loads
        if o.given and o.unexpected >= o.given and o.missing and (rank, o.name) not in fits
    ]
    if not empty:
        return "every state that was loaded had names of the model" if loads else None
    rank, step, load = empty[0]
    ranks = sorted({rank for rank, _, _ in empty})
    return Violation(at=load.place, where=Where(step=step), words={"load": load}, ranks=ranks, shown_by=rank)


RULES = rules_of(
    Expectation(
        name="empty_load",
        detected="load_state_dict(strict=False) with no name that matches the model",
        find=_empty_load,
        says="Nothing of a checkpoint is loaded into {load.name}: none of its {load.given} names is one of the model's, and strict=False accepts that.",
        claim="load_state_dict with {load.given} names: {load.unexpected} unexpected, {load.missing} of the model's missing",
        fix="Make the names match (a prefix such as `module.` or `_orig_mod.` comes from a wrapper), and check missing_keys.",
        strength=Strength.STRONG,
    ),
    keeps="states",
    explained_by=("nonfinite",),
)
RESTARTS = rules_of(
    Expectation(
        name="optimizer_begun_anew",
        detected="A restart within the job puts back a model's state, and an optimizer of the same settings begins anew, although its state was saved at the same moment",
        find=_optimizer_anew,
        says="The model's state is loaded at step {load}, and {name} begins anew with the settings of the first one: its state was saved with the model's, and is not loaded.",
        claim="state_dict() of {saved.name} was taken at {saved.place}; the optimizer that steps from step {at} on is another object, and load_state_dict() of no optimizer was called",
        fix="Load model, optimizer and scheduler from the same checkpoint, into the objects that train.",
    ),
    Expectation(
        name="schedule_begun_anew",
        detected="A restart within the job puts back a model's state and goes on with its optimizer, and a scheduler of the same numbers begins anew, although its state was saved at the same moment",
        find=_schedule_anew,
        says="The model's state is loaded at step {load}, and {name} begins again with its first step: its state was saved with the model's, and is not loaded.",
        claim="state_dict() of {saved.name} was taken at {saved.place}; a new one was made at {made.place} with last_epoch=-1, and load_state_dict() of no scheduler was called",
        fix="Load model, optimizer and scheduler from the same checkpoint, into the objects that train.",
    ),
    Expectation(
        name="schedule_repeated",
        detected="A restart within the job restores model and optimizer, and the learning rate repeats its course from the beginning",
        find=_schedule_repeated,
        says="Model and optimizer are restored at step {at} from a state of step {saved}, and the schedule begins with its first step again: the learning rate repeats its course instead of going on.",
        claim="",
        fix="Save the scheduler's state with the optimizer's, and load both.",
    ),
    Expectation(
        name="epochs_repeated",
        detected="A restart within the job restores model and optimizer, and the sampler repeats the epochs from before",
        find=_epochs_repeated,
        says="Model and optimizer are restored at step {load} from a state of step {saved}, and {name} begins with epoch {epoch} again: each of its {number} epochs repeats the order of one that was trained on before.",
        claim="epochs before: {before}; after the restart, with the same seed: {later}",
        fix="Go on with the epoch that was saved: set_epoch(epoch) with the number of epochs before, and skip the batches that were used.",
    ),
    Expectation(
        name="other_epoch_resumed",
        detected="A restart within the job goes on with the rest of an epoch that was broken off, in the order of another epoch",
        find=_other_epoch,
        says="Model and optimizer are restored at step {load} from a state of step {saved}, {done} steps into epoch {broken}, and the {rest} steps that are left of it take the order of epoch {resumed}: samples of the one are read twice, those of the other never.",
        claim="an epoch has {whole} steps; of epoch {broken} {done} were made, and the first one after the restart, of {rest}, is epoch {resumed} of the same seed",
        fix="Go on with the epoch that was saved: set_epoch(epoch) before its batches are skipped, also of a loader that is made anew to skip them.",
    ),
    Expectation(
        name="loaded_beside",
        detected="(on a GPU: `--probes light,invariants`) A model's state is loaded into a copy that never runs",
        find=_loaded_beside,
        says="A state of {given} tensors is loaded into a {name} that never runs and is gone at the end of step {step}: the model that trains keeps its own weights.",
        claim="{number} parameters of the optimizer have the same checksums at the load and before the next optimizer step",
        fix="Load model, optimizer and scheduler from the same checkpoint, into the objects that train.",
    ),
    keeps="states",
    explained_by=("nonfinite", "empty_load", "broken_equalities"),
)
