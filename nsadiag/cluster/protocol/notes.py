"""The messages between the watches of a job's nodes (hub.py): the state of each node, its captures, and node 0's orders."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from nsadiag.agent.stillness.motion import Stance
from nsadiag.evidence.documents import shapes
from nsadiag.evidence.documents.shapes import NOTHING, Shape
from nsadiag.evidence.documents.values import Rank, Whole, row_of, shape_of, value_of
from nsadiag.evidence.recorder import Dump
from nsadiag.evidence.spans import MOST_RANKS, ranks_in, spelled

Note = TypeVar("Note")
Document = Mapping[str, Any]
Kept = Annotated[
    dict[str, Any],
    shapes.record({}, {"files": shapes.count, "bytes": shapes.count, "left": shapes.rows(shapes.text)}),
]
MOST_WORDS = 500


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of one node, sent twice a second and at each change."""

    cell: int  # the job that it is about, counted by node 0
    number: Whole = 0  # of this note
    ranks: tuple[Rank, ...] = ()  # that have appeared there
    alive: int = 0
    world_size: Annotated[int, shapes.between(0, MOST_RANKS)] = 0  # as the ranks there know it
    worked: int = 0  # events that were progress, so far
    dead: tuple[Rank, ...] = ()  # of the ranks
    settled: bool = False
    stirred_ago_s: float | None = None  # since work was last seen there
    over: bool = False  # the launcher has ended, and the ranks with it
    exit_code: Whole | None = None
    ending: bool = False  # deaths from here on are our doing
    answered: int = 0  # the capture of which all evidence is where node 0 can read it
    brought: int = 0  # the request for ranks' evidence that has been met
    ended: bool = False
    kept: Kept | None = None  # what became of the evidence, at the end
    interrupted: bool = False
    failed: str = ""  # why the agent there cannot go on


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The place that a node has found for its evidence."""

    shared: bool = False  # node 0's own directory
    directory: str = ""
    failed: str = ""
    hint: str = ""


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
    found = _fitting(State, document)
    return found and dataclasses.replace(found, failed=_plain(found.failed))


def ready_of(document: Document | None) -> Ready:
    """The part of it that has its type."""
    found = _fitting(Ready, document) or Ready()
    return dataclasses.replace(found, failed=_plain(found.failed), hint=_plain(found.hint))


def _fitting(kind: type[Note], document: Document | None) -> Note | None:
    """The document as a value, without what has another type than its field; None where that leaves too little."""
    hint: Any = kind
    found = _shape(hint)(document, [])
    return None if found is NOTHING else value_of(kind, found)


@functools.cache
def _shape(kind: Any) -> Shape:
    return row_of(kind)


def _plain(text: str) -> str:
    """Words that are shown to a person."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_WORDS])


def order_of(document: Document | None) -> Order | None:
    known = {f.name for f in dataclasses.fields(Order)}
    try:
        found = Order(**{k: v for k, v in (document or {}).items() if k in known})
        ranks_in(str(found.wanted))
        return dataclasses.replace(found, waiting=ranks_in(str((document or {})["waiting"])))
    except (KeyError, TypeError, ValueError):
        return None


def looked_of(document: Document | None) -> Looked | None:
    found = _looked_shape()(document, [])
    if found is NOTHING:
        return None
    return Looked(
        cell=found["cell"],
        first=found["first"],
        stances=[value_of(Stance, stance) for stance in found["stances"]],
        worked={int(rank): (float(ago), _plain(did)) for rank, (ago, did) in found["worked"].items()},
    )


@functools.cache
def _looked_shape() -> Shape:
    stance = row_of(Stance, queue=shape_of(Dump))
    worked = shapes.table(shapes.of(shapes.number, shapes.text), key=_is_rank)
    needed = {"cell": shapes.count, "first": shapes.count, "stances": shapes.rows(stance), "worked": worked}
    return shapes.record(needed)


def _is_rank(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 8
