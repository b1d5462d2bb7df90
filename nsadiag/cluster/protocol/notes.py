"""The messages between the watches of a job's nodes (hub.py): the state of each node, its captures, and node 0's orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsadiag.agent.stillness.motion import Motion, Stance
from nsadiag.evidence.spans import ranks_in, spelled

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of one node, sent twice a second and at each change."""

    cell: int  # the job that it is about, counted by node 0
    number: int = 0  # of this note
    ranks: tuple[int, ...] = ()  # that have appeared there
    alive: int = 0
    world_size: int = 0  # as the ranks there know it
    worked: int = 0  # events that were progress, so far
    dead: tuple[int, ...] = ()  # of the ranks
    settled: bool = False
    stirred_ago_s: float | None = None  # since work was last seen there
    over: bool = False  # the launcher has ended, and the ranks with it
    exit_code: int | None = None
    ending: bool = False  # deaths from here on are our doing
    answered: int = 0  # the capture of which all evidence is where node 0 can read it
    brought: int = 0  # the request for ranks' evidence that has been met
    ended: bool = False
    kept: Mapping[str, Any] | None = None  # what became of the evidence, at the end
    interrupted: bool = False
    failed: str = ""  # why the agent there cannot go on


@dataclass(frozen=True, kw_only=True)
class Order:
    """An order from node 0 to all nodes."""

    cell: int
    look: int = 0  # take the captures of this number and the next
    waiting: tuple[int, ...] = ()  # ranks that the last look found waiting for their peers
    answer: int = 0  # the job is stuck: what the capture of this number needs besides
    stop: str | None = None  # end the job: hang, timeout, interrupt, or over
    many: bool = (
        False  # evidence is reduced on each node, and travels whole only of the ranks that are wanted
    )
    wanted: str = ""  # those ranks, spelled
    want: int = 0  # counts such requests
    last: bool = False  # there will be no other


@dataclass(frozen=True, kw_only=True)
class Looked:
    """The observations of one node in a pair of captures."""

    cell: int
    first: int
    stances: list[Stance] = field(default_factory=list)
    worked: Mapping[int, tuple[float, str]] = field(default_factory=dict)  # seconds ago, and what


def to_document(note: State | Order) -> dict[str, Any]:
    """An order goes to every node: ten thousand ranks are told as spans."""
    more = {"waiting": spelled(note.waiting)} if isinstance(note, Order) else {}
    return dataclasses.asdict(note) | more


def looked_document(note: Looked) -> dict[str, Any]:
    return dataclasses.asdict(note) | {"worked": {str(rank): told for rank, told in note.worked.items()}}


def state_of(document: Document | None) -> State | None:
    """None where there is none, or not one that we understand."""
    known = {f.name for f in dataclasses.fields(State)}
    try:
        found = State(**{k: v for k, v in (document or {}).items() if k in known})
        ranks, dead = (tuple(int(rank) for rank in each) for each in (found.ranks, found.dead))
        return dataclasses.replace(found, ranks=ranks, dead=dead)
    except (TypeError, ValueError):
        return None


def order_of(document: Document | None) -> Order | None:
    known = {f.name for f in dataclasses.fields(Order)}
    try:
        found = Order(**{k: v for k, v in (document or {}).items() if k in known})
        ranks_in(str(found.wanted))
        return dataclasses.replace(found, waiting=ranks_in(str((document or {})["waiting"])))
    except (KeyError, TypeError, ValueError):
        return None


def looked_of(document: Document | None) -> Looked | None:
    if not document:
        return None
    try:
        return Looked(
            cell=int(document["cell"]),
            first=int(document["first"]),
            stances=[_stance(each) for each in document["stances"]],
            worked={int(rank): (float(ago), str(did)) for rank, (ago, did) in document["worked"].items()},
        )
    except (KeyError, TypeError, ValueError):
        return None


def _stance(document: Document) -> Stance:
    motion = document["motion"]
    return Stance(
        rank=int(document["rank"]),
        motion=Motion(**motion) if motion else None,
        queue=dict(document["queue"]),
        inside=document["inside"],
    )
