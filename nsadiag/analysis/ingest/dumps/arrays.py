"""Columns of one rank's dump from arrays of its entries, where numpy is installed: `plain.py` makes the same entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nsadiag.analysis.ingest.dumps.columns import (
    MOST_MISSING,
    OVER,
    Category,
    Group,
    GroupColumn,
    GroupNames,
    RankColumns,
    config_of,
    dump_columns,
)
from nsadiag.evidence.recorder import Dump

Codes = npt.NDArray[np.uint32]


def group_column(
    group: Group,
    process_group: tuple[str, str],
    seqs: npt.NDArray[np.int64],
    codes: Codes,
    states: npt.NDArray[np.uint8],
) -> GroupColumn:
    """From entries in any order; several under one number (coalesced) count as one.

    A group's collectives are over in order: what is said to be open before one that is over was only not looked at.
    """
    if len(seqs) > 1 and not (np.diff(seqs) == 1).all():
        seqs, codes, states = _in_order(seqs, codes, states)
    over = np.flatnonzero(states == OVER)
    is_open = np.arange(over[-1] + 1 if len(over) else 0, len(states))
    return GroupColumn(
        group=group,
        process_group=process_group,
        first=int(seqs[0]),
        codes=codes,
        open_seqs=tuple(int(seqs[0]) + int(i) for i in is_open),
        open_states=tuple(int(states[i]) for i in is_open),
    )


def _in_order(
    seqs: npt.NDArray[np.int64], codes: Codes, states: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int64], Codes, npt.NDArray[np.uint8]]:
    first, last = int(seqs.min()), int(seqs.max())
    if last - first > MOST_MISSING:  # no ring holds as many: numbers of a damaged entry
        first = last - MOST_MISSING
    inside = seqs >= first
    place = (seqs[inside] - first).astype(np.int64)
    all_codes = np.zeros(last - first + 1, dtype=np.uint32)
    all_states = np.full(last - first + 1, OVER, dtype=np.uint8)
    np.add.at(all_codes, place, codes[inside])
    np.minimum.at(all_states, place, states[inside])
    return np.arange(first, last + 1), all_codes, all_states


def columns_of(
    rank: int,
    file: str,
    document: Dump,
    names: GroupNames,
    seqs: npt.NDArray[np.int64],
    categories: Sequence[Category],
    numbers: npt.NDArray[np.intp],
) -> RankColumns:
    """`numbers`: the place of each entry's category among `categories`; `document`: the dump, of whose entries nothing is read."""
    config = config_of(document)
    distinct: dict[Category, int] = {}
    places = [distinct.setdefault(category, len(distinct)) for category in categories]
    here, kinds = list(distinct), np.array(places, dtype=np.intp)[numbers]
    codes = np.array([c.code for c in here], dtype=np.uint32)
    states = np.array([c.state for c in here], dtype=np.uint8)
    p2p = np.array([c.is_p2p for c in here], dtype=bool)
    of_group: dict[tuple[str, str], list[int]] = {}
    for place, category in enumerate(here):
        if not category.is_p2p:
            of_group.setdefault(category.process_group, []).append(place)
    columns = []
    for process_group, members in of_group.items():
        chosen = np.isin(kinds, members) if len(of_group) > 1 or p2p.any() else slice(None)
        mine = kinds[chosen]
        group = names.group(process_group, config)
        columns.append(group_column(group, process_group, seqs[chosen], codes[mine], states[mine]))
    open_transfers = int((p2p & (states != OVER))[kinds].sum()) if here else 0
    return dump_columns(rank, file, document, columns, open_transfers=open_transfers, entries=len(kinds))
