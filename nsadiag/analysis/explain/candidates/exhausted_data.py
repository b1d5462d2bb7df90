"""Data that ran out on one rank first, in a framework's loop that no line of the user's shows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsadiag.analysis.explain.candidate import Basis, Candidate, Kind
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.evidence.ring.blackbox import Phase
from nsadiag.evidence.ring.reader import Event

Answer = tuple[
    str, str, bool
]  # dataset, the user's line that led to the question, whether the data had run out
Loader = tuple[str, str]  # the first two of these
# What a rank does with a batch together with its peers; a forward only through what wraps the model for them.
WITH_PEERS = (EventKind.BACKWARD, EventKind.COLLECTIVE, EventKind.UNIT)
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


def exhausted_data(context: Context) -> Iterator[Candidate]:
    """Asked the same question for the same time, a loader had run out on some ranks and gave a batch on the others."""
    ranks = [context.cell.rank(rank) for rank in context.members()]
    shared: set[Loader] = set().union(*map(shared_loaders, ranks))
    answers = {rank.rank: [a for a in answers_of(rank) if a[:2] in shared] for rank in ranks}
    number = first_that_differs(list(answers.values()))
    if number is None:
        return
    ended = tuple(r for r, given in answers.items() if given[number][2])
    went_on = tuple(r for r in answers if r not in ended)
    guilty, others = (ended, went_on) if len(ended) <= len(went_on) else (went_on, ended)
    dataset, at, _ = answers[ended[0]][number]
    had = had_before(answers[ended[0]], number)
    many = f"{had} batch{'es' if had != 1 else ''}"
    because = f"had {many} of its DataLoader ({dataset}), and rank {context.cell.names(went_on)} had more"
    if guilty == went_on:
        because = f"had more than the {many} of {'its' if len(went_on) == 1 else 'their'} DataLoader ({dataset}) after which the others' data ended"
    yield Candidate(
        kind=Kind.LOOP_END,
        basis=Basis.FRAMEWORK,
        condition=None,
        depends_on="input",
        guilty=guilty,
        blocked=others,
        where=locations.of_text(at),
        because=because,
        evidence=(
            context.recorded(ended[0], f"was at the end of the data after {many}"),
            context.recorded(went_on[0], "was given another batch then"),
            context.stands(ended[0]),
            context.stands(went_on[0]),
        ),
    )


def answers_of(rank: RankEvidence) -> list[Answer]:
    """The loaders' answers to the rank's main thread, in order; nothing where the ring has lost its beginning."""
    found: list[Answer] = []
    at = ""
    for event in _of_main_thread(rank):
        if event.kind == EventKind.DATA and event.phase == Phase.BEGIN:
            at = event.site
        elif event.kind == EventKind.DATA and event.phase == Phase.END:
            found.append((event.name, at, bool(event.b)))
    return found


def shared_loaders(rank: RankEvidence) -> set[Loader]:
    """Those with whose batches the rank ever met its peers.

    Ranks may well validate on other numbers of batches each, as long as each does so by itself: that parts nobody.
    """
    found: set[Loader] = set()
    at, batch = "", None
    for event in _of_main_thread(rank):
        if event.kind == EventKind.DATA:
            if event.phase == Phase.BEGIN:
                at = event.site
            batch = (event.name, at) if event.phase == Phase.END and not event.b else None
        elif batch and (
            event.kind in WITH_PEERS or (event.kind == EventKind.FORWARD and event.name in WRAPPERS)
        ):
            found.add(batch)
    return found


def _of_main_thread(rank: RankEvidence) -> Iterator[Event]:
    """The events that matter here, all of them or none."""
    recording, events = rank.recording, rank.recording.events
    if not recording.is_whole or recording.pid is None:
        return iter(())
    matter = np.isin(events["kind"], [EventKind.DATA, EventKind.FORWARD, *WITH_PEERS])
    return recording.decode(events[matter & (events["thread"] == recording.pid)])


def first_that_differs(answers: list[list[Answer]]) -> int | None:
    """The first question that all were asked alike and answered differently; None where they asked other things before."""
    for number, given in enumerate(zip(*answers, strict=False)):
        if len({(dataset, at) for dataset, at, _ in given}) > 1:
            return None
        if len({ran_out for _, _, ran_out in given}) > 1:
            return number
    return None


def had_before(given: list[Answer], number: int) -> int:
    """Batches of that loader in the pass that was under way then."""
    loader = [ran_out for dataset, at, ran_out in given[:number] if (dataset, at) == given[number][:2]]
    return loader[::-1].index(True) if True in loader else len(loader)
