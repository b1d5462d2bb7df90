"""Sends and receives, which gloo's flight recorder leaves out: who stands in one, and who its peer is."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from nsadiag.evidence.ring.blackbox import Kind, Phase

TRANSFER_COLUMNS = [
    "rank",
    "op",  # `irecv` is the call, `irecv.wait` the wait for its Work
    "group",
    "call",  # number of the call in its group, the same for call and wait
    "elements",
    "direction",  # to, from
    "peer",  # a global rank; missing where any may send
    "tag",
    "tensor",  # "float32[3]"
    "step",
    "begin_s",
    "end_s",  # missing while the rank still is in it
    "place",
]
FIRST_PEER = r"^(?:to|from)="
PEER = re.compile(r"(to|from)=(any|\d+) tag=(\d+)(?: (\w+\[[\d,]*\]))?")


def transfers_of(rank: int, events: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of TRANSFER_COLUMNS from the rank's own events: one a peer, so a batch has several."""
    named = events[(events.kind == Kind.COLLECTIVE) & events.detail.str.contains(FIRST_PEER)]
    rows: list[dict[str, Any]] = []
    begun: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for event in named.to_dict("records"):
        key = (event["name"], event["a"], event["group"], event["site"], event["detail"])
        if event["phase"] == Phase.END:
            for row in begun.pop(key, []):
                row["end_s"] = event["t_s"]
        else:
            begun[key] = _begun(rank, event)
            rows.extend(begun[key])
    return rows


def _begun(rank: int, event: dict[Any, Any]) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "op": event["name"],
            "group": event["group"],
            "call": event["a"],
            "elements": event["b"],
            "direction": direction,
            "peer": None if peer == "any" else int(peer),
            "tag": int(tag),
            "tensor": tensor,
            "step": event["step"],
            "begin_s": event["t_s"],
            "end_s": None,
            "place": event["site"],
        }
        for direction, peer, tag, tensor in PEER.findall(event["detail"])
    ]
