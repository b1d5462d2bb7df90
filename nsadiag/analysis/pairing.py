"""Sends and the receives that are theirs: the nth from one rank to another with a tag is met by the nth there."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from nsadiag.analysis import places
from nsadiag.analysis.disagreement import minority, shapes
from nsadiag.analysis.stages import odd_stage, stray_tag
from nsadiag.evidence.records import Place

if TYPE_CHECKING:
    from nsadiag.analysis.tables import Tables

STAYS = "still at messages with which its peer is through"
NOBODY = "no majority, and no rank that left its path"
GUESSES = (STAYS, NOBODY)  # that they wait for each other is certain, and who is at fault is not
SAME = "all do the same at the same line, and nobody the opposite"
UNUSUAL = "with another number of messages than in its steps before"
TAG = "with another tag than the stages before and behind it have for that message"
NEIGHBOURS = "with another number of messages than the stages before and behind it have"
FEWEST_STEPS = 3  # before the one that hangs, for their order of messages to be a habit


@dataclass(frozen=True, kw_only=True)
class Pending:
    """The send or receive in which a rank stands."""

    rank: int
    op: str
    group: str
    direction: str
    peer: int | None
    tag: int
    number: int  # which message between the two, with this tag
    step: int
    place: Place | None
    counterpart: str | None  # what the peer has to show for it
    source: str

    @property
    def said(self) -> str:
        word = "sends message" if self.direction == "to" else "waits for message"
        peer = "anyone" if self.peer is None else f"rank {self.peer}"
        return f"{word} {self.number} {self.direction} {peer} (tag {self.tag})"

    @property
    def link(self) -> tuple[int, int] | None:
        """Sender and receiver."""
        if self.peer is None:
            return None
        return (self.rank, self.peer) if self.direction == "to" else (self.peer, self.rank)

    @property
    def alike(self) -> tuple[Any, ...]:
        """Equal for ranks that do the same thing at the same line."""
        return (
            self.direction,
            self.place.file if self.place else None,
            self.place.line if self.place else None,
        )


@dataclass(frozen=True, kw_only=True)
class Short:
    """A line from which fewer messages came in this step than in any before."""

    place: Place | None
    now: int
    before: int  # at least, in each


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A message that does not fit into where it is received."""

    sender: int
    receiver: int
    tag: int
    number: int
    sent: str
    received: str
    guilty: int
    places: dict[int, str]


def calls_of(tables: Tables) -> pd.DataFrame:
    """Sends and receives without the waits for them, numbered by sender, receiver and tag."""
    rows = tables.transfers
    calls = rows[~rows.op.str.endswith(".wait") & rows.peer.notna()].copy()
    to = calls.direction == "to"
    calls["sender"] = calls["rank"].where(to, calls.peer).astype(int)
    calls["receiver"] = calls.peer.where(to, calls["rank"]).astype(int)
    calls["number"] = calls.groupby(["rank", "sender", "receiver", "tag"]).cumcount() + 1
    return calls


def pending_of(tables: Tables, rank: int) -> Pending | None:
    """Where the rank stands, if it is a send or receive that its peer never met."""
    at = tables.standings.get(rank)
    rows = tables.transfers
    open_ = rows[(rows["rank"] == rank) & rows.end_s.isna() & rows.peer.notna()]
    if at is None or at.doing != "transfer" or open_.empty:
        return None
    shown = [p for row in open_.to_dict("records") if (p := _pending(tables, rank, row))]
    return next((p for p in shown if p.counterpart), shown[0] if shown else None)


def _pending(tables: Tables, rank: int, row: dict[Any, Any]) -> Pending:
    calls = calls_of(tables)
    peer, tag = int(row["peer"]), int(row["tag"])
    sender, receiver = (rank, peer) if row["direction"] == "to" else (peer, rank)
    between = calls[(calls.sender == sender) & (calls.receiver == receiver)]
    mine = between[(between["rank"] == rank) & (between.tag == tag) & (between.begin_s <= row["begin_s"])]
    number = int(mine.number.max()) if len(mine) else 1
    theirs = between[between["rank"] == peer]
    return Pending(
        rank=rank,
        op=str(row["op"]),
        group=str(row["group"]),
        direction=str(row["direction"]),
        peer=peer,
        tag=tag,
        number=number,
        step=int(row["step"]),
        place=places.of_text(_called_at(calls, rank, row)),
        counterpart=_counterpart(theirs, peer, rank, row["direction"], tag, number),
        source=f"ranks/{rank:05d}/blackbox.bin",
    )


def _called_at(calls: pd.DataFrame, rank: int, row: dict[Any, Any]) -> str:
    """Of a wait, the line of the call whose Work it is: that names peer and tag."""
    call = calls[(calls["rank"] == rank) & (calls.call == row["call"]) & (calls.group == row["group"])]
    return str(call.iloc[0].place if len(call) else row["place"])


def _counterpart(
    theirs: pd.DataFrame, peer: int, rank: int, direction: str, tag: int, number: int
) -> str | None:
    """None where the peer did its part."""
    done = "received" if direction == "to" else "sent"
    met = int((theirs.tag == tag).sum())
    if met >= number:
        return None
    others = Counter(int(t) for t in theirs.tag if t != tag)
    tags = (
        "; with other tags " + ", ".join(f"{n} (tag {t})" for t, n in sorted(others.items())[:4])
        if others
        else ""
    )
    return f"rank {peer} {done} {met} message{'s' if met != 1 else ''} {'from' if direction == 'to' else 'to'} rank {rank} with tag {tag}{tags}"


def blame(tables: Tables, waiting: dict[int, Pending]) -> tuple[tuple[int, ...], str]:
    """Of ranks in a cycle with transfers: who does what the others do not."""
    ranks = tuple(sorted(waiting))
    alike = {rank: p.alike for rank, p in waiting.items()}
    # Somebody who is waited for and stands elsewhere does not do the same.
    same = len(ranks) > 1 and len(set(alike.values())) == 1 and _involved(waiting) == set(ranks)
    # A line in a helper says little: who came to it from elsewhere may well do the opposite by turns.
    if same and len({_way(tables, rank) for rank in ranks}) == 1:
        return ranks, SAME
    unusual = tuple(sorted(r for r in _involved(waiting) if _is_unusual(tables, r)))
    odd = odd_stage(calls_of(tables), _involved(waiting))
    if odd is not None and unusual != (odd,):
        return (odd,), NEIGHBOURS
    if 0 < len(unusual) < len(_involved(waiting)):
        return unusual, UNUSUAL
    strayed = tuple(sorted(r for r in _involved(waiting) if _strayed(tables, r)))
    if 0 < len(strayed) < len(_involved(waiting)):
        return strayed, "with its messages in another order than in its steps before"
    astray = stray_tag(calls_of(tables), {link for p in waiting.values() if (link := p.link)})
    if astray is not None:
        return (astray,), TAG
    jumped = tuple(sorted(r for r in _involved(waiting) if _jumped(tables, r)))
    if 0 < len(jumped) < len(_involved(waiting)):
        return jumped, "with a tag out of its row"
    if same:
        return ranks, SAME
    left = _gone_on(tables, waiting)
    if left is not None:
        return (left,), "in no send or receive, and two or more ranks wait for its messages"
    few = minority(alike) if len(ranks) > 2 else ()
    if few:
        return few, "elsewhere than the others"
    alone = [r for r in ranks if waiting[r].counterpart]
    if len(alone) == 1:
        return (alone[0],), "its message has no counterpart"
    dangling = tuple(r for r in alone if waiting[r].peer not in waiting)
    if 0 < len(dangling) < len(ranks):
        return dangling, "its peer is in no send or receive at all"
    if set(alone) == set(ranks) and all(waiting[r].direction == "to" for r in ranks):
        # Who has one message too many, and who one receive too few, cannot be told from here.
        return ranks, "each sends, and none receives before its own message is taken"
    stays = tuple(sorted(r for r in alone if _repeats(tables, waiting[r])))
    if 0 < len(stays) < len(ranks):
        return stays, STAYS
    tagged = tuple(sorted(minority(_tags_at(tables, waiting[ranks[0]].place))))
    if tagged and set(tagged) <= set(ranks):
        return tagged, "with another tag than most have at that line"
    return ranks, NOBODY


def _gone_on(tables: Tables, waiting: dict[int, Pending]) -> int | None:
    """The one rank of which several wait in vain, and which stands in no transfer itself: it left before they did."""
    missed = {p.peer for p in waiting.values() if p.counterpart and p.peer not in waiting}
    by = [p.rank for p in waiting.values() if p.counterpart and p.peer in missed]
    peer = missed.pop() if len(missed) == 1 and len(by) > 1 else None
    at = tables.standings.get(peer) if peer is not None else None
    return peer if at is not None and at.doing != "transfer" else None


def _involved(waiting: dict[int, Pending]) -> set[int]:
    return set(waiting) | {p.peer for p in waiting.values() if p.peer is not None}


def _way(tables: Tables, rank: int) -> tuple[tuple[str, int], ...]:
    """The lines of the rank's stack."""
    at = tables.standings.get(rank)
    return tuple((p.file, p.line) for p in at.frames) if at is not None else ()


def _is_unusual(tables: Tables, rank: int) -> bool:
    """Whether this step's messages differ from what every step before had, not counting those that may yet come."""
    counts = _counts(tables, rank)
    *before, now = _orders(tables, rank) or [()]
    # What a step before began with may go on as that one did, also at lines in a loop that it is still in.
    if counts.shape[1] < 2 or any(each[: len(now)] == now for each in before):
        return False
    return bool((counts.iloc[:, -1] > counts.iloc[:, :-1].max(axis=1)).any()) or bool(
        left_short(tables, rank)
    )


def left_short(tables: Tables, rank: int) -> Short | None:
    """The line that the rank has left with fewer messages in this step than in every one before."""
    counts = _counts(tables, rank)
    if counts.shape[1] < 2:
        return None
    now, least = counts.iloc[:, -1], counts.iloc[:, :-1].min(axis=1)
    # At the line where it stands the rank may not be through; at lines that it has left, it is.
    at = tables.standings.get(rank)
    here = str(counts.attrs["newest"]) if at is None or at.doing == "transfer" else ""
    less = (now.index.get_level_values("place") != here) & (now > 0) & (now < least)
    if not less.any():
        return None
    most = int((least - now).where(less).argmax())
    line = now.index.get_level_values("place")[most]
    return Short(place=places.of_text(str(line)), now=int(now.iloc[most]), before=int(least.iloc[most]))


def _counts(tables: Tables, rank: int) -> pd.DataFrame:
    """How many messages from each line (with direction, peer and tag) in each step."""
    calls = calls_of(tables)
    mine = calls[calls["rank"] == rank]
    keys = ["step", "direction", "peer", "tag", "place"]
    counts = mine.groupby(keys).size().unstack(level=0, fill_value=0) if len(mine) else pd.DataFrame()
    counts.attrs["newest"] = mine.iloc[-1]["place"] if len(mine) else ""
    return counts


def _strayed(tables: Tables, rank: int) -> bool:
    """Whether this step's messages, as far as they go, are not what a step before began with."""
    whole = _orders(tables, rank)
    if len(whole) <= FEWEST_STEPS:
        return False
    *before, now = whole
    # The black box may have forgotten the beginning of the first, and steps that never repeat have no order to leave.
    known = set(before[1:])
    return len(known) < len(before) - 1 and not any(each[: len(now)] == now for each in known)


def _orders(tables: Tables, rank: int) -> list[tuple[tuple[str, int, str], ...]]:
    """The messages of each step in their order."""
    calls = calls_of(tables)
    mine = calls[calls["rank"] == rank]
    return [
        tuple(zip(rows.direction, rows.peer, rows.place, strict=True)) for _, rows in mine.groupby("step")
    ]


def _jumped(tables: Tables, rank: int) -> bool:
    """Whether its last tag breaks the row in which its tags went up, or stayed, until then.

    Where rows of tags have begun anew before, one more that begins breaks nothing.
    """
    calls = calls_of(tables)
    mine = calls[calls["rank"] == rank]
    if mine.empty:
        return False
    last = mine.iloc[-1]
    tags = [int(t) for t in mine[(mine.direction == last.direction) & (mine.peer == last.peer)].tag]
    steps = [after - before for before, after in itertools.pairwise(tags)]
    began_anew = any(step < 0 and tag == tags[0] for step, tag in zip(steps[:-1], tags[1:], strict=False))
    if began_anew and tags[-1] == tags[0]:
        return False
    return len(steps) > 2 and steps[-1] not in steps[:-1]


def _tags_at(tables: Tables, at: Place | None) -> dict[int, int]:
    """By rank: the tag of its newest message from that line."""
    calls = calls_of(tables)
    here = calls[[at is not None and _is_at(text, at) for text in calls.place]]
    return {int(str(rank)): int(frame.iloc[-1].tag) for rank, frame in here.groupby("rank")}


def _repeats(tables: Tables, pending: Pending) -> bool:
    """Whether the rank made a call from this line already, in this step."""
    calls = calls_of(tables)
    mine = calls[(calls["rank"] == pending.rank) & (calls.step == pending.step)]
    here = pending.place
    return here is not None and sum(_is_at(text, here) for text in mine.place) > 1


def _is_at(text: str, place: Place) -> bool:
    found = places.of_text(str(text))
    return found is not None and (found.file, found.line) == (place.file, place.line)


def misfits(tables: Tables) -> list[Misfit]:
    """The last messages between two ranks whose sizes or types differ, earliest first."""
    calls = calls_of(tables)
    found = []
    keys = ["sender", "receiver", "tag", "number"]
    for key, pair in calls.groupby(keys):
        sender, receiver, tag, number = (int(str(part)) for part in key)
        if len(pair) != 2 or pair["rank"].nunique() != 2:
            continue
        sent, received = pair[pair["rank"] == sender].iloc[0], pair[pair["rank"] == receiver].iloc[0]
        if not sent.tensor or not received.tensor or shapes(sent.tensor) == shapes(received.tensor):
            continue
        changed = {r for r in (sender, receiver) if _changed(calls, r, (sender, receiver, tag), number)}
        found.append(
            (
                float(received.begin_s),
                Misfit(
                    sender=sender,
                    receiver=receiver,
                    tag=tag,
                    number=number,
                    sent=sent.tensor,
                    received=received.tensor,
                    guilty=sender if changed == {sender} else receiver,
                    places={sender: sent.place, receiver: received.place},
                ),
            )
        )
    return [misfit for _, misfit in sorted(found, key=lambda each: each[0])]


def _changed(calls: pd.DataFrame, rank: int, pair: tuple[int, int, int], number: int) -> bool:
    """Whether the rank's message differs from all those that it exchanged before with this peer."""
    sender, receiver, tag = pair
    mine = calls[
        (calls["rank"] == rank) & (calls.sender == sender) & (calls.receiver == receiver) & (calls.tag == tag)
    ]
    now = mine[mine.number == number].tensor.iloc[0]
    before = set(mine[mine.number < number].tensor)
    return bool(before) and now not in before
