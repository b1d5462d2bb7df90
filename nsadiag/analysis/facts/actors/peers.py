"""Processes that share a torch process group, by the connections between them that are not Ray's.

gloo connects every member of a group with every other; torch's store connects each with the one that holds it. Ray's own
go to the port of its server in one of the two processes. Where the process says which sockets its backend listens to,
only these count.
"""

from __future__ import annotations

from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.evidence.documents.kernel import Descriptor
from nsadiag.evidence.numbers import natural

End = tuple[str, str]


def torch_peers(job: ActorJob) -> dict[int, set[int]]:
    """By process, those that are connected with it."""
    ports = {process.number: process.port for process in job.ray.processes}
    ends: dict[End, int] = {}
    for number in job.processes:
        for local, peer in _connections(job, number):
            ends[local, peer] = number
    found: dict[int, set[int]] = {}
    for (local, peer), number in ends.items():
        other = ends.get((peer, local))
        if other is None or other == number:
            continue
        if port_of(local) == ports[number] or port_of(peer) == ports[other]:
            continue
        found.setdefault(number, set()).add(other)
    return found


def _connections(job: ActorJob, number: int) -> list[End]:
    captures = job.captures(number)
    rows: tuple[Descriptor, ...] = captures[-1].proc.fds.open if captures else ()
    waits = job.waits.get(number)
    if waits is not None and waits.transport is not None:
        rows = tuple(row for row in rows if row.fd in waits.transport)
    node = job.processes[number].node
    return [
        (end_of(row.local, node), end_of(row.peer, node))
        for row in rows
        if row.kind == "tcp" and row.state == "ESTABLISHED"
    ]


def end_of(address: str, node: str) -> str:
    """The address as every node knows it."""
    plain = address.replace("[::ffff:", "").replace("]", "")
    return f"{node}/{plain}" if plain.startswith(("127.", "[::1")) else plain


def port_of(address: str) -> int:
    """-1 where there is none."""
    port = natural(address.rpartition(":")[2])
    return -1 if port is None else port
