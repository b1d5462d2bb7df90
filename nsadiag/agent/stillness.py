"""Did anything move between two captures? Only when nothing did, on any rank, is a job called still."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from nsadiag.evidence.layout import CaptureDir, RankDir, read_json

Judgement = Literal["progress", "busy", "asleep", "still", "unobserved"]

# Of one CPU. Ranks that only wait were seen at 0.003, pollers at up to 0.02; a rank that computes on a crowded
# machine may get little, and one that shows the same line for minutes may still be in a long loop.
BUSY_SHARE = 0.05
SOME_SHARE = 0.02  # together with changing frames
IO_BYTES = 1 << 16
# A rank that polls wakes several times between two looks; one that sleeps for hours is stuck by any measure.
NAP_S = (1.0, 300.0)


@dataclass(frozen=True, kw_only=True)
class Motion:
    """What one rank did between two captures `seconds` apart."""

    rank: int
    seconds: float
    cpu_share: float  # CPU seconds a second, children included
    frames_changed: bool
    io_bytes: int
    runnable: bool = False  # the main thread had work for a CPU in both captures, whether it got one or not
    events: int  # black-box records written
    collectives: int  # issued, by the flight recorder
    wakes_in_s: float | None = None  # after the second look, where the main thread is in a timed sleep
    waits_for_peers: bool  # a collective is pending that only peers can complete

    @property
    def works(self) -> bool:
        """Uses the machine for something other than spinning in a collective."""
        if self.waits_for_peers:
            return False
        busy = self.cpu_share > BUSY_SHARE or (self.frames_changed and self.cpu_share > SOME_SHARE)
        return busy or self.runnable or self.io_bytes > IO_BYTES


def _cpu_s(proc: dict[str, Any]) -> float:
    return float(proc["cpu_s"]) + sum(float(child["cpu_s"]) for child in proc["children"])


def _wakes_in_s(proc: dict[str, Any]) -> float | None:
    wake_ns = proc.get("sleeps_until_mono_ns")
    return (wake_ns - proc["t_mono_ns"]) / 1e9 if wake_ns else None


def _io_bytes(proc: dict[str, Any]) -> int:
    return sum(int(proc["io"].get(key, 0)) for key in ("rchar", "wchar"))


def frames(capture: CaptureDir) -> list[tuple[Any, ...]]:
    """Every thread's stack as (function, file, line), to compare."""
    threads = read_json(capture.py_spy, [])
    return [tuple((f["name"], f["filename"], f["line"]) for f in t["frames"]) for t in threads]


def issued(fr: dict[str, Any]) -> dict[str, int]:
    """Per group, the highest sequence number this rank issued."""
    counts: dict[str, int] = {}
    for entry in fr.get("entries", []):
        group = str(entry["process_group"][0])
        number = max(int(entry["collective_seq_id"]), int(entry.get("p2p_seq_id") or 0))
        counts[group] = max(counts.get(group, 0), number)
    return counts


Dump = dict[str, Any]


def _pending(fr: Dump) -> list[dict[str, Any]]:
    """Entries that are not over. gloo marks those that are by `retired`, NCCL by the state as well."""
    entries = fr.get("entries", [])
    return [e for e in entries if not e.get("retired") and e.get("state") != "completed"]


def _number(entry: dict[str, Any]) -> tuple[str, int]:
    return str(entry["process_group"][0]), int(entry["collective_seq_id"])


def _what(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["profiling_name"], entry["input_sizes"]


def members(fr: Dump, group: str) -> set[int] | None:
    """Ranks of the group by the dump's own pg_config; None where it does not say."""
    listed = fr.get("pg_config", {}).get(group, {}).get("ranks")
    return {int(n) for n in listed.strip("[]").split(",")} if listed else None


def _queued_alike(entry: dict[str, Any], peers: dict[int, Dump], wanted: set[int]) -> bool:
    """Whether every other member has the same collective queued, and none has finished it.

    Such a collective stands behind kernels that still run on a GPU: that is work, not waiting.
    """
    for rank in wanted:
        theirs = [e for e in peers.get(rank, {}).get("entries", []) if _number(e) == _number(entry)]
        if not theirs or _what(theirs[-1]) != _what(entry) or theirs[-1].get("state") == "completed":
            return False
    return True


def waits_for_peers(rank: int, dumps: dict[int, Dump], world: set[int]) -> bool:
    """Whether the rank is held up by what its peers did not issue, issued otherwise, or died before."""
    mine = dumps.get(rank, {})
    for entry in _pending(mine):
        if not str(entry["profiling_name"]).startswith("nccl") or entry.get("state") == "started":
            return True
        wanted = (members(mine, _number(entry)[0]) or world) - {rank}
        if not _queued_alike(entry, dumps, wanted):
            return True
    return False


def motion(rank: RankDir, first: int, second: int, events: int) -> Motion | None:
    """Compares two captures; None if the process could not be looked at twice."""
    a, b = rank.capture(first), rank.capture(second)
    before, after = read_json(a.proc), read_json(b.proc)
    if not before or not after:
        return None
    seconds = max((after["t_mono_ns"] - before["t_mono_ns"]) / 1e9, 1e-3)
    fr_before, fr_after = read_json(a.flight_recorder, {}), read_json(b.flight_recorder, {})
    return Motion(
        rank=rank.rank,
        seconds=seconds,
        cpu_share=max(_cpu_s(after) - _cpu_s(before), 0.0) / seconds,
        frames_changed=frames(a) != frames(b),
        io_bytes=_io_bytes(after) - _io_bytes(before),
        runnable=before["state"] == after["state"] == "R",
        events=events,
        collectives=sum(issued(fr_after).values()) - sum(issued(fr_before).values()),
        wakes_in_s=_wakes_in_s(after),
        waits_for_peers=False,
    )


def motions(
    ranks: list[RankDir], looks: tuple[int, int], events: dict[int, int], world: set[int]
) -> list[Motion]:
    """All living ranks at once: whether one waits for its peers depends on what those issued.

    `looks` are the numbers of the two captures; `world` holds the dead as well: they are waited for, too.
    """
    first, second = looks
    dumps = {r.rank: read_json(r.capture(second).flight_recorder, {}) for r in ranks}
    found = []
    for rank in ranks:
        moved = motion(rank, first, second, events.get(rank.rank, 0))
        if moved is not None:
            waits = waits_for_peers(rank.rank, dumps, world)
            found.append(dataclasses.replace(moved, waits_for_peers=waits))
    return found


def judge(moved: list[Motion]) -> tuple[Judgement, str]:
    """The verdict on one pair of captures, with its reason."""
    if not moved:
        return "unobserved", "no rank could be looked at twice"
    for rank in moved:
        if rank.events or rank.collectives:
            return (
                "progress",
                f"rank {rank.rank} wrote {rank.events} events and issued {rank.collectives} collectives",
            )
    working = [rank for rank in moved if rank.works]
    if working:
        rank = max(working, key=lambda m: m.cpu_share)
        return "busy", f"rank {rank.rank} used {rank.cpu_share:.2f} CPUs and {rank.io_bytes} bytes of I/O"
    napping = [rank for rank in moved if rank.wakes_in_s and NAP_S[0] < rank.wakes_in_s < NAP_S[1]]
    if napping:
        last = max(napping, key=lambda m: m.wakes_in_s or 0.0)
        return "asleep", f"rank {last.rank} is in a sleep that ends by itself in {last.wakes_in_s:.0f} s"
    spinning = [str(rank.rank) for rank in moved if rank.cpu_share > BUSY_SHARE]
    spins = f" (rank {', '.join(spinning)} spins in a collective)" if spinning else ""
    count, seconds = len(moved), moved[0].seconds
    return "still", f"no event, no new collective, no work on any of {count} ranks in {seconds:.1f} s{spins}"
