"""A pipeline whose stages send and receive by helpers: which stage left its loop too early, and which loop that is."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support.sources import source_file
from test_disagreement import pending

from nsadiag.analysis.facts.locations import place
from nsadiag.analysis.facts.transfers import TRANSFER_COLUMNS
from nsadiag.analysis.outliers import Basis, Outliers
from nsadiag.analysis.relations.messages.pairing import left_short
from nsadiag.analysis.rules.desync.messages.loop_left import loop_left
from nsadiag.analysis.rules.desync.messages.outliers import message_outliers
from nsadiag.evidence.records import Place
from nsadiag.source.control import Program
from nsadiag.source.evaluation import OnRank

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
    transfers = pd.DataFrame(rows, columns=TRANSFER_COLUMNS).sort_values("begin_s")
    return SimpleNamespace(transfers=transfers, thread_states=stands)


def waiting() -> dict[int, Any]:
    """All ranks wait at the line of the helper that receives."""
    return {
        rank: replace(pending(rank, peer, "from", "sent fewer"), place=place(FILE, 2, "receive"))
        for rank, peer in ((0, 1), (1, 0))
    }


def test_who_sent_fewer_is_told_from_whoever_waits_in_the_same_helper() -> None:
    case = pipeline({0: 20, 1: 10, 2: 10})
    assert message_outliers(case, waiting()) == Outliers(ranks=(0,), basis=Basis.UNUSUAL_COUNT)
    short = left_short(case, 0)
    assert short and short.place and (short.place.line, short.now, short.before) == (1, 3, 6)


def test_ranks_that_came_to_one_line_by_the_same_way_do_the_same() -> None:
    assert message_outliers(pipeline({0: 10, 1: 10, 2: 10}), waiting()) == Outliers(
        ranks=(0, 1), basis=Basis.ALIKE
    )


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
    transfers = pd.DataFrame(rows, columns=TRANSFER_COLUMNS).sort_values("begin_s")
    case: Any = SimpleNamespace(transfers=transfers, thread_states=stands)
    there = place(FILE, 2, "receive")
    waits = {r: replace(pending(r, r + 1, "from", "sent fewer"), place=there) for r in (0, 1)}
    assert message_outliers(case, waits) == Outliers(ranks=(2,), basis=Basis.UNUSUAL_COUNT)


SOURCE = """
import torch.distributed as dist

def send(t, peer):
    dist.send(t, peer)  # SENDS

def warm_up(t):
    dist.send(t, 3)

def parts(batch, rank):
    if rank == 0:
        yield from batch.split(8)  # GIVES
    else:
        for _ in range(6):
            yield receive(rank - 1)  # TAKES

def step(batch, rank):
    for x in {over}:  # LOOP
        y = net(x)
        {test}send(y, 1)
    for x in reversed(saved):
        x.backward(receive(1))  # STANDS
        send(x.grad, 2)
"""


def line(source: str, marker: str) -> int:
    return next(n for n, text in enumerate(source.splitlines(), 1) if f"# {marker}" in text)


def left(over: str, test: str, peer: str | None = None) -> str | None:
    """The line that is named, for a rank that stands where it waits for what comes back."""
    source = textwrap.dedent(SOURCE).format(over=over, test=test)
    program = Program({FILE: source_file(FILE, source)})

    def at(marker: str) -> tuple[Place, ...]:
        return (place(FILE, line(source, marker), None),)

    who = OnRank(program=program, rank=1, world_size=4)
    found = loop_left(at("SENDS")[0], who, at("STANDS"), [at(peer)] if peer else [])
    return source.splitlines()[found.line - 1].split("#")[0].strip() if found else None


@pytest.mark.parametrize(
    ("over", "test", "peer", "named"),
    [
        ("batch.split(8)", "", None, "for x in batch.split(8):"),
        ("batch.split(8)", "if rank < 2: ", None, "for x in batch.split(8):"),
        # A condition on the data may have left it out as well.
        ("batch.split(8)", "if y.any(): ", None, None),
        # Nothing else may, where all ranks have as many rounds; on this rank a part of the test may hold for ever.
        ("range(4)", "if y.any(): ", None, "if y.any(): send(y, 1)"),
        ("range(4)", "if rank == 1 and y.any(): ", None, "if rank == 1 and y.any(): send(y, 1)"),
        ("range(4)", "if rank == 1 or y.any(): ", None, "for x in range(4):"),
        # The rank never comes to that call.
        ("range(4)", "if rank == 0: ", None, None),
        # What gives out decides; which of two does is known by who else stands in the other.
        ("enumerate(parts(batch, rank))", "", "TAKES", "yield from batch.split(8)"),
        ("enumerate(parts(batch, rank))", "", None, "for x in enumerate(parts(batch, rank)):"),
    ],
)
def test_the_loop_around_the_call_of_a_helper_is_found(
    over: str, test: str, peer: str | None, named: str | None
) -> None:
    assert left(over, test, peer) == named


def test_a_handler_that_names_no_exception_is_no_question() -> None:
    source = "try:\n    step()\nexcept:\n    dist.send(x, 1)\n"
    program = Program({FILE: source_file(FILE, source)})
    who = OnRank(program=program, rank=0, world_size=2)
    guards = program.around(FILE, 4)
    assert [g.kind for g in guards] == ["except"]
    assert [(who.holds(g), who.never_in(g)) for g in guards] == [(None, False)]
    assert all(who.decides(g) for g in guards)
