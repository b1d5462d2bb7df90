"""Ranks in a row, each of which hands on to the next what it has from the one before: whose number of messages, or tag, is its own."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import pandas as pd

FEWEST = 3  # in a row: of two nobody can tell which is odd


def odd_stage(calls: pd.DataFrame, among: set[int]) -> int | None:
    """The one rank of a row that took part in another number of messages of this step than all others did.

    Calls count that have not ended: a stage that waits for a message would have had it. Counted in the direction in which
    the step's messages go first: what is missing there is missing on the way back as well, and on other ranks.
    """
    row = _row_with(calls, among)
    if len(row) < FEWEST:
        return None
    mine = calls[calls["rank"].isin(row)]
    now = mine[mine.step == mine.groupby("rank").step.transform("max")]
    if now.empty or now.groupby("rank").step.max().nunique() > 1:
        return None
    onward = (now.receiver > now.sender).to_numpy()
    first = bool(onward[now.begin_s.argmin()])
    way = now[onward == first]
    # Of what it takes in and what it hands on, the more: the last stage only takes in.
    counts = way.groupby(["rank", "sender", "receiver"]).size().groupby("rank").max()
    if set(counts.index) != set(row):
        return None
    found = Counter(counts.tolist()).most_common()
    if len(found) != 2 or found[1][1] != 1 or found[0][1] < FEWEST - 1:
        return None
    return int(counts.index[counts == found[1][0]][0])


def _row_with(calls: pd.DataFrame, among: set[int]) -> list[int]:
    """All ranks that are linked in a row with these; empty where they form none, or exchange by more than one tag."""
    links = {(min(s, r), max(s, r)) for s, r in calls[["sender", "receiver"]].itertuples(index=False)}
    row = sorted({rank for link in links for rank in link})
    if not among <= set(row) or links != set(itertools.pairwise(row)) or calls.tag.nunique() > 1:
        return []
    return row


def stray_tag(calls: pd.DataFrame, pairs: set[tuple[int, int]]) -> int | None:
    """The one rank, of senders and receivers whose tags part, that has another than the links before and behind it.

    Those must have had the same tags as this link until then: who hands messages on under a number of their own tells
    nothing of who miscounts here.
    """
    tags: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for rank, sender, receiver, tag in calls[["rank", "sender", "receiver", "tag"]].itertuples(index=False):
        tags[rank, sender, receiver].append(int(tag))
    found = {_odd_tag(tags, *pair) for pair in pairs} - {None}
    return found.pop() if len(found) == 1 else None


def _odd_tag(tags: dict[tuple[int, int, int], list[int]], sender: int, receiver: int) -> int | None:
    sent, awaited = (tags.get((rank, sender, receiver), []) for rank in (sender, receiver))
    parted = next((n for n, (one, other) in enumerate(zip(sent, awaited, strict=False)) if one != other), 0)
    before = sent[:parted]
    if parted < FEWEST or len(set(before)) == 1:
        return None
    # What the sender takes in from one before it, and what the receiver hands on to one behind it.
    others = {
        theirs[parted]
        for (_, source, goal), theirs in tags.items()
        if (goal == sender and source != receiver) or (source == receiver and goal != sender)
        if theirs[:parted] == before and len(theirs) > parted
    }
    if len(others) != 1:
        return None
    return {awaited[parted]: sender, sent[parted]: receiver}.get(others.pop())
