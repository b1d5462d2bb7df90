"""Roles of a job of several launchers: who belongs to which, by its launcher, and what each is called."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsadiag.agent import processes
from nsadiag.agent.attaching.finding import (
    AttachedRank,
    as_rank,
    check_readable,
    family_of,
    in_process_group,
    is_python,
    no_python,
)
from nsadiag.agent.captures.kernel.descriptors import descriptors
from nsadiag.agent.processes import Process

MOST = 64  # processes of one job that are looked at
# Processes of Python's own, and of launchers, that do none of a role's work.
HELPERS = re.compile(
    r"multiprocessing\.(resource_tracker|forkserver)|torch/_inductor/compile_worker|torch/utils/data/_utils"
)
LAUNCHERS = re.compile(r"(^|/)(torchrun|accelerate|deepspeed)( |$)|torch\.distributed\.(run|launch)\b")
MODULE = re.compile(r"^[A-Za-z_][\w.]*$")
ROUNDS = 2  # of following connections from ranks to those whom they talk to


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process of a role; `rank` is its rank there, or its place among several without ranks."""

    role: str
    rank: int | None
    process: Process


def roles_among(pids: Iterable[int], named: Mapping[int, str]) -> list[Member]:
    """The processes that these pids and their descendants are, by roles; `named` has names that were given, by pid.

    Raises UsageError or MachineError as `find_ranks` does.
    """
    parties: dict[str, list[AttachedRank | Process]] = {}
    given: dict[str, str] = {}
    seen: set[Process] = set()
    for pid in dict.fromkeys([*pids, *named]):
        check_readable(pid)
        found = [each for each in _members(pid) if _process(each) not in seen]
        if not found and not seen.intersection(family_of(pid)):
            raise no_python(pid)
        seen.update(map(_process, found))
        for each in found:
            key = _party(each, pid)
            parties.setdefault(key, []).append(each)
            if pid in named:
                given[key] = named[pid]
    names = _names({key: _process(party[0]).pid for key, party in parties.items()}, given)
    return [member for key, party in parties.items() for member in _numbered(names[key], party)][:MOST]


def roles_in(family: Iterable[Process]) -> list[Member]:
    """The same of all processes of a job that one command has started, but those from which its ranks descend: launchers."""
    known = sorted(process.pid for process in family)
    ranks = [p for pid in known if as_rank(p := Process(pid=pid, started=0)) and is_python(pid)]
    above = {pid for rank in ranks if not _is_below_a_rank(rank) for pid in _ancestors(rank.pid)}
    # What a launcher has started beside ranks is a role each, and the launcher none.
    below = [pid for pid in known if pid not in above]
    tops = [pid for pid in below if processes.parent(pid) in above or processes.parent(pid) not in known]
    return roles_among([pid for pid in tops if any(is_python(p.pid) for p in family_of(pid))], {})


def _is_below_a_rank(process: Process) -> bool:
    return any(as_rank(Process(pid=pid, started=0)) for pid in _ancestors(process.pid))


def _ancestors(pid: int) -> Iterator[int]:
    while (pid := processes.parent(pid)) > 1:
        yield pid


def several(members: Iterable[Member]) -> bool:
    """Whether they are more than one role: ranks of one launcher are judged as ranks."""
    return len({member.role for member in members}) > 1


def jobs_among(members: Sequence[Member]) -> list[list[Member]]:
    """Those that have to do with each other: of one role, connected, or started in one directory, where they share files."""
    jobs: list[tuple[set[Hashable], list[Member]]] = []
    for member in members:
        signs = set(_signs(member))
        apart = [job for job in jobs if not job[0] & signs]
        mine = [job for job in jobs if job[0] & signs]
        one = (signs.union(*(job[0] for job in mine)), [*(m for job in mine for m in job[1]), member])
        jobs = [*apart, one]
    order = {member: place for place, member in enumerate(members)}
    found = [sorted(job, key=order.__getitem__) for _, job in jobs]
    return sorted(found, key=lambda job: order[job[0]])


def _signs(member: Member) -> Iterator[Hashable]:
    pid = member.process.pid
    yield member.role
    with contextlib.suppress(OSError):
        if (place := Path(f"/proc/{pid}/cwd").readlink()) != Path("/"):
            yield place
    for row in descriptors(pid).get("open", []):
        if row.get("state") == "ESTABLISHED":
            yield frozenset((row["local"], row["peer"]))
        elif row.get("peer_inode"):
            yield frozenset((row["inode"], row["peer_inode"]))


def everyone() -> list[int]:
    """Pids of this user's ranks, of processes in a process group, and of those whom they talk to on this machine."""
    mine = [pid for pid in _own() if is_python(pid) and not HELPERS.search(_line(pid))]
    ends = {pid: {(row["local"], row["peer"]) for row in _established(pid)} for pid in mine}
    found = {pid for pid in mine if as_rank(Process(pid=pid, started=0)) or in_process_group(pid)}
    found -= {pid for pid in mine if LAUNCHERS.search(_line(pid))}
    for _ in range(ROUNDS):
        reached = {(peer, local) for pid in found for local, peer in ends[pid]}
        found |= {pid for pid in mine if reached & ends[pid] and not LAUNCHERS.search(_line(pid))}
    return sorted(found)


def _own() -> Iterator[int]:
    me = Path("/proc/self").stat().st_uid
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == me:
                yield int(path.name)
        except OSError:
            continue


def _established(pid: int) -> list[dict[str, str]]:
    return [row for row in descriptors(pid).get("open", []) if row.get("state") == "ESTABLISHED"]


def _members(pid: int) -> list[AttachedRank | Process]:
    """Its ranks, the topmost of each number; and Python processes of its family that are no rank and belong to none."""
    family = [p for p in family_of(pid) if is_python(p.pid) and not HELPERS.search(_line(p.pid))]
    ranks: dict[tuple[int, int], AttachedRank] = {}
    for process in family:
        if rank := as_rank(process):
            ranks.setdefault((_launcher(process), rank.rank), rank)
    inside = {p for rank in ranks.values() for p in family_of(rank.process.pid)}
    rest = [p for p in family if p not in inside and not LAUNCHERS.search(_line(p.pid))]
    return [*ranks.values(), *rest]


def _process(each: AttachedRank | Process) -> Process:
    return each.process if isinstance(each, AttachedRank) else each


def _launcher(process: Process) -> int:
    """The process that started the rank; what a shell around it does not change."""
    pid = processes.parent(process.pid)
    while pid > 1 and as_rank(Process(pid=pid, started=0)):
        pid = processes.parent(pid)
    return pid


def _party(each: AttachedRank | Process, given: int) -> str:
    """Ranks of one launcher; a process without a rank with the children that it has, or by the pid that was given."""
    if isinstance(each, AttachedRank):
        return f"launcher {_launcher(each.process)}"
    top, pid = each.pid, processes.parent(each.pid)
    while top != given and pid > 1 and is_python(pid) and not LAUNCHERS.search(_line(pid)):
        top, pid = pid, processes.parent(pid)
    return f"process {top}"


def _numbered(name: str, party: list[AttachedRank | Process]) -> Iterator[Member]:
    for place, each in enumerate(party):
        if isinstance(each, AttachedRank):
            yield Member(role=name, rank=each.rank, process=each.process)
        else:
            yield Member(role=name, rank=place if len(party) > 1 else None, process=each)


def _names(pids: Mapping[str, int], given: Mapping[str, str]) -> dict[str, str]:
    """By party: as it was named, else by its command line; of several alike each with its place among them."""
    told = {key: given.get(key) or name_of(pid) for key, pid in pids.items()}
    many, seen = Counter(told.values()), Counter[str]()
    found = {}
    for key, name in told.items():
        found[key] = f"{name} {seen[name]}" if many[name] > 1 else name
        seen[name] += 1
    return found


def name_of(pid: int) -> str:
    """The script or module that its command line runs."""
    words = words_of(pid)
    for before, word in zip(["", *words], words, strict=False):
        if word.endswith(".py"):
            return Path(word).stem
        if before == "-m" and MODULE.match(word):
            parts = word.split(".")
            return parts[0] if parts[-1] in ("__main__", "cli", "main") else parts[-1]
    return Path(words[0]).name if words else f"process {pid}"


def words_of(pid: int) -> list[str]:
    """Its command line; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _line(pid: int) -> str:
    return " ".join(words_of(pid)[:4])
