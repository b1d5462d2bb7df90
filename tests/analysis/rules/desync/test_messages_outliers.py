"""A pipeline whose stages send and receive by helpers: the stage that left its loop too early."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.tables import pending, table

from nsadiag.analysis.facts.collectives import TRANSFER_COLUMNS
from nsadiag.analysis.facts.locations import place
from nsadiag.analysis.outliers import Criterion, Outliers
from nsadiag.analysis.rules.desync.messages.outliers import message_outliers

FILE = "/u/pipe.py"
SENDS, RECEIVES = f"{FILE}:1:send", f"{FILE}:2:receive"


def stage(rank: int, steps: list[list[tuple[str, int]]]) -> list[dict[str, Any]]:
    """One rank's messages, step by step: to (`>`) or from (`<`) a peer; the last one never ended."""
    rows = [
        {
            "rank": rank, "op": "send" if sign == ">" else "recv", "group": "default_pg", "call": 100 * step + n,
            "elements": 8, "direction": "to" if sign == ">" else "from", "peer": peer, "tag": 0, "tensor": "float32[8]",
            "step": step, "begin_s": 100 * step + n, "end_s": 1.0, "place": SENDS if sign == ">" else RECEIVES,
        }
        for step, messages in enumerate(steps)
        for n, (sign, peer) in enumerate(messages)
    ]  # fmt: skip
    rows[-1]["end_s"] = None
    return rows


def pipeline(frames: dict[int, int]) -> Any:
    """Three stages and six micro-batches in each step; in the last one the first stage has three."""
    first = [(">", 1)] * 6 + [("<", 1)] * 6
    middle = [("<", 0), (">", 2)] * 6 + [("<", 2), (">", 0)] * 6
    last = [("<", 1)] * 6 + [(">", 1)] * 6
    rows = stage(0, [first] * 3 + [first[3:7]])
    rows += stage(1, [middle] * 3 + [middle[:7]]) + stage(2, [last] * 3 + [last[:4]])
    stands = {
        rank: SimpleNamespace(doing="transfer", frames=(place(FILE, 2, "receive"), place(FILE, line, "step")))
        for rank, line in frames.items()
    }
    transfers = table(rows, columns=TRANSFER_COLUMNS).sort_values("begin_s")
    return SimpleNamespace(transfers=transfers, thread_states=stands)


def waiting() -> dict[int, Any]:
    """All ranks wait at the line of the helper that receives."""
    return {
        rank: replace(pending(rank, peer, "from", "sent fewer"), place=place(FILE, 2, "receive"))
        for rank, peer in ((0, 1), (1, 0))
    }


def test_who_sent_fewer_is_told_from_whoever_waits_in_the_same_helper() -> None:
    case = pipeline({0: 20, 1: 10, 2: 10})
    assert message_outliers(case, waiting()) == Outliers(ranks=(0,), criterion=Criterion.UNUSUAL_COUNT)


def test_who_went_on_with_fewer_messages_is_told_from_those_that_wait_at_one_line_for_them() -> None:
    """The last stage left out a micro-batch, and stands in a collective: those before it wait in a row, all the same way."""
    first = [(">", 1)] * 4 + [("<", 1)] * 4
    middle = [("<", 0), (">", 2)] * 4 + [("<", 2), (">", 0)] * 4
    last = [("<", 1)] * 4 + [(">", 1)] * 4
    rows = (
        stage(0, [first] * 4) + stage(1, [middle] * 3 + [middle[:-1]]) + stage(2, [last] * 3 + [last[1:-1]])
    )
    stands = {rank: SimpleNamespace(doing="transfer", frames=(place(FILE, 10, "step"),)) for rank in (0, 1)}
    stands[2] = SimpleNamespace(doing="collective", frames=(place(FILE, 20, "norm"),))
    transfers = table(rows, columns=TRANSFER_COLUMNS).sort_values("begin_s")
    case: Any = SimpleNamespace(transfers=transfers, thread_states=stands)
    there = place(FILE, 2, "receive")
    waits = {r: replace(pending(r, r + 1, "from", "sent fewer"), place=there) for r in (0, 1)}
    assert message_outliers(case, waits) == Outliers(ranks=(2,), criterion=Criterion.UNUSUAL_COUNT)
