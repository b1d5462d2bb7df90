"""The verdict on a pair of captures: only if nothing moved on any rank, and no wait may end by itself, is a job called still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from nsadiag.agent.stillness.activity import BUSY_SHARE
from nsadiag.agent.stillness.external_waits import ALWAYS_S
from nsadiag.agent.stillness.motion import HELPER_CREDIT_S, Motion
from nsadiag.evidence.phrases import are, count, these

Judgement = Literal["progress", "busy", "asleep", "still", "unobserved"]

# A rank that polls wakes between two looks, so that no nap is the same in both; one that sleeps for hours is stuck by
# any measure. Below zero: it should have woken just before the second look, and got no CPU yet.
NAP_S = (-1.0, 300.0)


def judge(
    moved: list[Motion], *, nap_credit_s: float = NAP_S[1], believes_world: bool = True
) -> tuple[Judgement, str]:
    """The verdict on one pair of captures, with its reason.

    `nap_credit_s`: how long sleepers may still be waited for. `believes_world`: so may what is outside the job.
    """
    if not moved:
        return "unobserved", "no rank could be captured twice"
    if found := _progress(moved):
        return "progress", found
    if found := _busy(moved):
        return "busy", found
    if found := _asleep(moved, nap_credit_s, believes_world):
        return "asleep", found
    seen = f"no progress on any rank in {moved[0].seconds:.1f} s: no events, collectives, CPU, GPU or I/O"
    return "still", seen + "".join(f" ({remark})" for remark in _remarks(moved))


def _progress(moved: list[Motion]) -> str | None:
    for rank in moved:
        if rank.events or rank.collectives:
            wrote, issued = count(rank.events, "event"), count(rank.collectives, "collective")
            return f"rank {rank.rank} wrote {wrote} and issued {issued}"
    return None


def _busy(moved: list[Motion]) -> str | None:
    rank = max((m for m in moved if m.works), key=lambda m: m.cpu_share, default=None)
    return f"rank {rank.rank} {rank.doing}" if rank else None


def _asleep(moved: list[Motion], nap_credit_s: float, believes_world: bool) -> str | None:
    """The wait that may end by itself, of a job in which nothing moves."""
    if all(rank.stopped and rank.silent_s for rank in moved) and nap_credit_s > 0:
        return "every rank is stopped by a signal, as when a job is suspended"
    free = [rank for rank in moved if not rank.waits_for_peers]
    slept = _longest([(m.rank, m.wakes_in_s) for m in free], nap_credit_s)
    if slept:
        return f"rank {slept[0]} is in a sleep that ends by itself in {slept[1]:.0f} s"
    credit_s = nap_credit_s - NAP_S[1] + HELPER_CREDIT_S
    slept = _longest(_helped(free, credit_s), credit_s)
    if slept:
        return f"rank {slept[0]} waits for something that a sleep or a time limit ends, and may for {slept[1]:.0f} s"
    return _going_on(free) or ((_outside(free) or _idle(moved)) if believes_world else None)


def _remarks(moved: list[Motion]) -> Iterator[str]:
    """Facts on the ranks of a job that stands still, for those who read the reason."""
    spinning = [rank.rank for rank in moved if rank.waits_for_peers and rank.cpu_share > BUSY_SHARE]
    if spinning:
        yield f"{these(spinning)} spin{'s' * (len(spinning) == 1)} in a collective"
    for rank in moved:
        if rank.spins:
            yield f"rank {rank.rank} spins in a loop that changes nothing"
    for rank in moved:
        if rank.is_lost:
            yield f"rank {rank.rank} waits for worker {rank.lost_worker}, none of whose threads can go on"
    halted = [rank.rank for rank in moved if rank.stopped]
    if halted:
        yield f"{these(halted)} {are(halted)} stopped by a signal"


def _going_on(free: list[Motion]) -> str | None:
    """The process that a rank waits for, and that has moved in this silence as it goes on doing."""
    for rank in free:
        if rank.goes_on and not rank.is_lost and 0 < rank.silent_s < rank.goes_on_silence_s:
            return f"rank {rank.rank} {rank.goes_on}"
    return None


def _outside(free: list[Motion]) -> str | None:
    """The reason to go on waiting for the world, which may still answer; None where nobody does, or for longer than that takes.

    Without knowing how long it has been silent that says nothing, but of a server.
    """
    for rank in free:
        if rank.outside and (0 < rank.silent_s < rank.outside_s or rank.outside_s == ALWAYS_S):
            return f"rank {rank.rank} {rank.outside}"
    return None


def _idle(moved: list[Motion]) -> str | None:
    """The idle consumers, if every rank is one: one that peers wait for, or that hangs beside it, is no consumer."""
    if any(
        m.waits_for_peers or m.idle is None or not (0 < m.silent_s < m.idle_s or m.idle_s == ALWAYS_S)
        for m in moved
    ):
        return None
    return f"rank {moved[0].rank} {moved[0].idle}, and nobody waits for it"


def _helped(free: list[Motion], credit_s: float) -> list[tuple[int, float | None]]:
    """Ranks whose thread or child naps, or whose wait has a limit that the silence has not reached: so, not one of many.

    Without knowing how long it has been silent that says nothing: many a process has a thread that naps.
    """
    known = [m for m in free if m.silent_s > 0]
    # A longer limit than there is patience for deserves no less of it than a short one.
    limited = [(m.rank, min(m.limit_s - m.silent_s, 0.99 * credit_s)) for m in known if m.limit_s is not None]
    return [*((m.rank, m.helper_wakes_in_s) for m in known), *limited]


def _longest(sleepers: list[tuple[int, float | None]], credit_s: float) -> tuple[int, float] | None:
    """The rank that sleeps longest, and for how long; None where nobody does, or it is too long to wait for."""
    found = [(wakes_in_s, rank) for rank, wakes_in_s in sleepers if wakes_in_s is not None]
    wakes_in_s, rank = max((nap for nap in found if nap[0] > NAP_S[0]), default=(credit_s, -1))
    return (rank, max(wakes_in_s, 0.0)) if wakes_in_s < credit_s else None
