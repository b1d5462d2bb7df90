"""Ranks in a row, each of which hands on to the next what it has from the one before: whose number of messages is its own."""

from __future__ import annotations

import itertools
from collections import Counter

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
