"""A rank that receives in a loop as others do, and is never sent what let them out of it."""

from __future__ import annotations

from collections.abc import Mapping

from nsadiag.analysis.paths.telling import because_of, place_of
from nsadiag.analysis.paths.walk import Announced, Executed, Walk
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Because, Link
from nsadiag.evidence.rehearsal.calls import RECEIVE, SEND
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.statements import Statement, gates_around


def untold(code: SourceModel, walks: Mapping[int, Walk], rank: int) -> Because | None:
    """The sender's line that let the others go on, and the loop or condition around it that left this rank out.

    None unless all that received at the same line from the same rank, and have left it, were let out by one line.
    """
    own = walks.get(rank)
    waiting = own.calls[-1] if own is not None and own.calls else None
    if own is None or waiting is None or waiting.op != RECEIVE or waiting.peer is None:
        return None
    sender = walks.get(waiting.peer)
    if sender is None or sender is own or _is_in_a_transfer(sender):
        return None
    let_out = {
        other.rank: step
        for other in walks.values()
        if other not in (own, sender) and (step := _last_word(other, sender, waiting)) is not None
    }
    lines = {step.at for step in let_out.values()}
    if len(lines) != 1 or any(sent.step.at in lines for sent in _sends(sender, rank)):
        return None
    return _told(code, sender, next(iter(let_out.values())), sorted(let_out), rank)


def _is_in_a_transfer(walk: Walk) -> bool:
    return bool(walk.calls) and walk.calls[-1].is_transfer and walk.last is walk.calls[-1].step


def _sends(sender: Walk, to: int) -> list[Announced]:
    return [call for call in sender.calls if call.op == SEND and call.peer == to]


def _last_word(other: Walk, sender: Walk, waiting: Announced) -> Executed | None:
    """The sender's step behind the last message that the other received at the line where this rank waits, and went on from."""
    received = [call for call in other.calls if call.op == RECEIVE and call.peer == sender.rank]
    last = next((n for n in reversed(range(len(received))) if received[n].step.at == waiting.step.at), None)
    sent = _sends(sender, other.rank)
    if last is None or last >= len(sent) or other.calls[-1] is received[last]:
        return None
    return sent[last].step


def _told(code: SourceModel, sender: Walk, step: Executed, others: list[int], rank: int) -> Because:
    said = f"rank {sender.rank} sent here to {these(others)} what let them go on, and never to rank {rank}"
    links = [Link(at=place_of(step), because=said, how="recorded", ranks=(sender.rank,))]
    gate = _gate(code, sender, step)
    if gate is not None:
        at, statement = gate
        why = f"it came to {these(others)}, and not to rank {rank}"
        if statement.kind == "if":
            why = f"`if {statement.test}` led there for {these(others)}, and not for rank {rank}"
        links.append(Link(at=place_of(at), because=why, how="recorded", ranks=(sender.rank,)))
    return because_of(tuple(links), len(links) - 1, "rank")


def _gate(code: SourceModel, sender: Walk, step: Executed) -> tuple[Executed, Statement] | None:
    """The innermost condition that did not always lead to the line, else the innermost loop; with its last execution before."""
    file = code.file(step.frame.file)
    if file is None:
        return None
    reached = len(sender.visits_of(step.at))
    for statement in gates_around(file, step.line):
        passed = len(sender.visits_of((step.frame.file, statement.first)))
        if statement.kind == "if" and passed <= reached:
            continue
        at = next((s for s in sender.before(step) if s.at == (step.frame.file, statement.first)), None)
        if at is not None:
            return at, statement
    return None
