"""A rank that exited on its own while its peers still needed it."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer
from nsadiag.analysis.facts.exits import TOGETHER_S, Break, breaks, first_break
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.messages.unsent import shortfalls
from nsadiag.analysis.relations.pending import waiting_group
from nsadiag.analysis.rules.drafts import recorder_of
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import capitalized, count, these
from nsadiag.evidence.records import Place, Strength

# States in which a rank needs its peers.
NEEDS_PEERS = ("collective", "transfer", "backward", "store", "rendezvous")
MOST_CITED = 4


def _doubts(case: Case, rank: RankEvidence) -> list[str]:
    """Observations that are missing for certainty: that it left on purpose, and that a peer needed it."""
    doubts = []
    if rank.end.exit_code and not rank.leaving:
        doubts.append(f"the reason for rank {rank.rank}'s exit code is not on record")
    followed = any(b.follows_a_peer for b in breaks(case.cell) if b.rank.rank != rank.rank)
    waiting = (s.doing in NEEDS_PEERS for number, s in case.thread_states.items() if number != rank.rank)
    if not followed and not any(waiting):
        doubts.append("no peer was seen to wait for it")
    return doubts


def _needed(case: Case, first: Break) -> list[Break]:
    """The exits that left a peer waiting, in the group where it waits: ranks that are done may leave before."""
    members, found = case.once(waiting_group), breaks(case.cell)
    left = [b for b in found if b.kind == "exited" and not b.follows_a_peer and b.rank.rank in members]
    # Whoever had lost a peer, and caught that, came to its end later.
    failed_s = min((b.t_s for b in found if b.follows_a_peer), default=math.inf)
    return (
        [b for b in left if b.t_s - failed_s < TOGETHER_S and not _lost_a_peer(b.rank)] or left[:1] or [first]
    )


def _lost_a_peer(rank: RankEvidence) -> bool:
    return any(follows_a_peer(first_of(row)) for row in rank.raised)


def _how(rank: RankEvidence) -> str:
    number, code = rank.end.signal, rank.end.exit_code
    if number:
        return f"{signal.Signals(number).name} after its exit handlers"
    return f"exit code {'unknown' if code is None else code}"


def rank_exited_early(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is None or first.kind != "exited":
        yield from other_break(case.cell)
        return
    if short := next(shortfalls(case), None):
        yield Declined(
            f"rank {short.sender} had sent {count(short.sent, 'message')}, and rank {short.receiver} waited for number {short.received}",
            recorder_of(case.cell, short.receiver),
        )
        return
    if case.cell.collected and first.rank.end.exit_code:
        code = first.rank.end.exit_code
        yield Declined(f"exit code {code} of rank {first.rank.rank} is not that of a clean end", "ends.json")
        return
    needed = _needed(case, first)
    rank, doubts = needed[0].rank, _doubts(case, needed[0].rank)
    left = tuple(sorted(b.rank.rank for b in needed))
    called_exit_at = locations.of_text(rank.leaving.place) if rank.leaving else None
    peers = (peer for peer in case.cell.ranks if peer.rank not in left)
    its = "its" if len(left) == 1 else "their"
    yield Draft(
        strength=Strength.GUESS if doubts else Strength.CONCLUSIVE,
        summary=f"{capitalized(these(left))} exited on {its} own ({_how(rank)}) after {count(rank.end.steps or 0, 'step')}, while {its} peers were still training.",
        guilty_ranks=left,
        at=called_exit_at or locations.of_black_box(rank),
        peers_at=next((_lost_it_at(peer) for peer in peers), None),
        evidence=dict.fromkeys(map(_ended, needed[:MOST_CITED]), "ends.json"),
        gaps=tuple(doubts),
    )


def _ended(one: Break) -> str:
    end = one.rank.end
    ran = "ran its exit handlers and " if end.clean else ""  # os._exit runs none
    return f"rank {one.rank.rank} {ran}ended at {end.t_s or one.t_s:.1f} s, without an exception"


def _lost_it_at(peer: RankEvidence) -> Place | None:
    """The line at which a peer failed, or caught that it had lost this rank, or waits."""
    if peer.exception:
        return locations.of_exception(peer.exception)
    caught = peer.raised and peer.leaving and peer.leaving.ended_with
    return (locations.of_text(peer.raised[-1].place) if caught else None) or locations.of_rank_now(peer)


RULE = Rule(
    means={"rank_exited_early": "A rank ended cleanly while its peers still needed it."},
    family="exit",
    detected="A rank ran its exit handlers without an exception, and its peers still needed it.",
    fix="Let all ranks agree to stop (all_reduce a flag) before any of them leaves the loop.",
    check=rank_exited_early,
    needs=("ends",),
    explained_by=("teardown_hang",),
    confused_with=("rank_killed", "rank_exception"),
)
