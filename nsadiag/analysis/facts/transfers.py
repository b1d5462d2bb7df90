"""Sends and receives by peer, which gloo's flight recorder leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table


class Transfer(NamedTuple):
    """One send or receive, or a wait for it, by peer."""

    rank: int
    op: str  # `irecv` is the call, `irecv.wait` the wait for its Work
    group: str
    call: int  # its number in the group, the same for call and wait
    elements: int
    direction: str  # to, from
    peer: int | None  # a global rank; missing where any may send
    tag: int
    tensor: str  # "float32[3]"
    step: int
    begin_s: float
    end_s: float | None  # missing while the rank still is in it
    place: str


TRANSFER_COLUMNS = [*Transfer._fields]
FIRST_PEER = r"^(?:to|from)="
PEER = re.compile(r"(to|from)=(any|\d+) tag=(\d+)(?: (\w+\[[\d,]*\]))?")


def transfers_of(rank: int, events: Table) -> list[Transfer]:
    """From the rank's own events: one a peer, so a batch has several."""
    named = events[(events.kind == Kind.COLLECTIVE) & events.detail.str.contains(FIRST_PEER)]
    rows: list[Transfer] = []
    begun: dict[tuple[Any, ...], slice] = {}
    each: Iterable[Any] = named.itertuples()
    for event in each:
        key = (event.name, event.a, event.group, event.site, event.detail)
        if event.phase == Phase.END:
            own = begun.pop(key, slice(0))
            rows[own] = [row._replace(end_s=event.t_s) for row in rows[own]]
        else:
            found = _begun(rank, event)
            begun[key] = slice(len(rows), len(rows) + len(found))
            rows += found
    return rows


def _begun(rank: int, event: Any) -> list[Transfer]:
    return [
        Transfer(
            rank=rank,
            op=event.name,
            group=event.group,
            call=event.a,
            elements=event.b,
            direction=direction,
            peer=None if peer == "any" else int(peer),
            tag=int(tag),
            tensor=tensor,
            step=event.step,
            begin_s=event.t_s,
            end_s=None,
            place=event.site,
        )
        for direction, peer, tag, tensor in PEER.findall(event.detail)
    ]
