"""Sends and receives by peer, which gloo's flight recorder leaves out."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from nsadiag.analysis.facts.collectives import paired
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.table import Table


class Transfer(NamedTuple):
    """One send or receive, or a wait for it, by peer."""

    rank: Annotated[int, "the rank that called it"]
    op: Annotated[str, "irecv is the call, irecv.wait the wait for its Work"]
    group: Annotated[str, "the process group, as the rank calls it"]
    call: Annotated[int, "its number in the group, the same for call and wait"]
    elements: Annotated[int, "the size of the tensor"]
    direction: Annotated[str, "to or from the peer"]
    peer: Annotated[int | None, "the peer's global rank; missing where any may send"]
    tag: Annotated[int, "the message's tag"]
    tensor: Annotated[str, "type and size: float32[3]"]
    step: Annotated[int, "steps of the optimizer before it"]
    begin_s: Annotated[float, "when it was called, in seconds since the job was started"]
    end_s: Annotated[float | None, "when it returned; missing while the rank is in it"]
    place: Annotated[str, "file, line and function"]


TRANSFER_COLUMNS = [*Transfer._fields]
FIRST_PEER = r"^(?:to|from)="
PEER = re.compile(r"(to|from)=(any|\d+) tag=(\d+)(?: (\w+\[[\d,]*\]))?")


def transfers_of(rank: int, events: Table) -> list[Transfer]:
    """From the rank's own events: one a peer, so a batch has several."""
    named = events[(events.kind == Kind.COLLECTIVE) & events.detail.str.contains(FIRST_PEER)]
    return [
        Transfer(
            rank=rank,
            op=event["name"],
            group=event["group"],
            call=event["a"],
            elements=event["b"],
            direction=direction,
            peer=None if peer == "any" else int(peer),
            tag=int(tag),
            tensor=tensor,
            step=event["step"],
            begin_s=event["t_s"],
            end_s=event["end_s"],
            place=event["site"],
        )
        for event in paired(named)
        for direction, peer, tag, tensor in PEER.findall(event["detail"])
    ]
