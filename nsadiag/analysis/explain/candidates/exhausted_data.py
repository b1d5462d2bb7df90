"""Data that ran out on one rank first, in a framework's loop that no line of the user's shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.timeline import TimelineEvent
from nsadiag.evidence.ring.blackbox import Kind as EventKind

# What a rank does with a batch together with its peers; a forward only through what wraps the model for them.
WITH_PEERS = (EventKind.BACKWARD, EventKind.COLLECTIVE, EventKind.UNIT)
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


class Loader(NamedTuple):
    """A loader by its dataset, and the user's line that led to it."""

    dataset: str
    at: str


class LoaderAnswer(NamedTuple):
    """A loader's answer: a batch, or the end of its data."""

    loader: Loader
    ran_out: bool


def exhausted_data(context: Context) -> Iterator[Candidate]:
    """Asked the same question for the same time, a loader had run out on some ranks and gave a batch on the others."""
    if not context.timelines.are_whole:
        return
    events = {rank: context.timelines.events.get(rank, []) for rank in context.members()}
    shared = set[Loader]().union(*map(shared_loaders, events.values()))
    answers = {rank: [a for a in answers_in(mine) if a.loader in shared] for rank, mine in events.items()}
    number = first_that_differs(list(answers.values()))
    if number is None:
        return
    ended = tuple(r for r, given in answers.items() if given[number].ran_out)
    went_on = tuple(r for r in answers if r not in ended)
    guilty, others = (ended, went_on) if len(ended) <= len(went_on) else (went_on, ended)
    loader, had = answers[ended[0]][number].loader, had_before(answers[ended[0]], number)
    many = f"{had} batch{'es' if had != 1 else ''}"
    because = f"reached the end of the DataLoader ({loader.dataset}) after {many}, and rank {context.cell.names(went_on)} got more"
    if guilty == went_on:
        because = f"got more than the {many} after which the other ranks' DataLoader ({loader.dataset}) ended"
    yield Candidate(
        kind=Kind.LOOP_END,
        proximity=Proximity.FRAMEWORK,
        condition=None,
        depends_on="input",
        guilty=guilty,
        blocked=others,
        where=locations.of_text(loader.at),
        because=because,
        evidence=(
            context.recorded(ended[0], f"reached the end of the data after {many}"),
            context.recorded(went_on[0], "got another batch then"),
            context.position(ended[0]),
            context.position(went_on[0]),
        ),
    )


def answers_in(events: Iterable[TimelineEvent]) -> list[LoaderAnswer]:
    """The loaders' answers to the rank's main thread, in order."""
    asked = (event for event in events if event.kind == EventKind.DATA and event.gave is not None)
    return [LoaderAnswer(Loader(event.name, event.at), not event.gave) for event in asked]


def shared_loaders(events: Iterable[TimelineEvent]) -> set[Loader]:
    """Loaders with whose batches the rank ever met its peers.

    Ranks may well validate on other numbers of batches each, as long as each does so by itself: that parts nobody.
    """
    found: set[Loader] = set()
    batch = None
    for event in events:
        if event.kind == EventKind.DATA:
            batch = Loader(event.name, event.at) if event.gave else None
        elif batch and (event.kind in WITH_PEERS or event.name in WRAPPERS):
            found.add(batch)
    return found


def first_that_differs(answers: list[list[LoaderAnswer]]) -> int | None:
    """The first question that all were asked alike and answered differently; None where they asked other things before."""
    for number, given in enumerate(zip(*answers, strict=False)):
        if len({each.loader for each in given}) > 1:
            return None
        if len({each.ran_out for each in given}) > 1:
            return number
    return None


def had_before(given: list[LoaderAnswer], number: int) -> int:
    """Batches of that loader in the pass that was under way then."""
    before = [each.ran_out for each in given[:number] if each.loader == given[number].loader]
    return before[::-1].index(True) if True in before else len(before)
