"""Exceptions that ended a child process of a rank: multiprocessing prints them, and nobody tells the rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.analysis.external.logs import read_log
from nsadiag.analysis.facts.exceptions import follows_a_peer
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.relations.blocked import BlockedRank
from nsadiag.evidence.documents.exceptions import Cause

# How multiprocessing begins what it says of a child's exception.
OF_CHILD = re.compile(r"^Process (?P<name>\S+):$")
# What a child says whose parent has gone, or was interrupted: that came with the end.
OF_THE_END = ("EOFError", "KeyboardInterrupt")
WAITS_FOR_CHILD = re.compile(r"/multiprocessing/\w+\.py$")


@dataclass(frozen=True, kw_only=True)
class InChild:
    """One exception, in the form of exception.json."""

    name: str  # of the process, as multiprocessing calls it
    exception: Cause


def in_children(rank: RankEvidence) -> list[InChild]:
    """In the order in which the rank's children died of them."""
    lines = rank.stderr_tail.splitlines()
    found = []
    for raised in read_log(rank.stderr_tail).raised:
        told = OF_CHILD.match(lines[raised.line - 2]) if raised.line > 1 else None
        exception = Cause(type=raised.type, message=raised.message, frames=raised.frames)
        if told and raised.type not in OF_THE_END and not follows_a_peer(exception):
            found.append(InChild(name=told["name"], exception=exception))
    return found


def waits_for_children(blocked: BlockedRank) -> bool:
    """Whether its main thread waits in a queue, a pipe or a lock that it shares with processes of its own."""
    frames = blocked.capture.main_frames
    return any(WAITS_FOR_CHILD.search(frame.filename) for frame in frames)


def has_dead(blocked: BlockedRank) -> bool:
    """Whether the kernel lists a child that has ended and that the rank has not asked about."""
    return any(not child.is_alive for child in blocked.capture.proc.children)
