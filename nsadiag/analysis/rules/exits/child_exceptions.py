"""Exceptions that ended a rank's child process: multiprocessing prints them, but does not report them to the rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.analysis.facts.exceptions import follows_a_peer
from nsadiag.analysis.ingest.logs import numbered, read_log
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.relations.blocked import BlockedRank
from nsadiag.evidence.documents.exceptions import Cause

# The line that multiprocessing prints before a child's traceback.
OF_CHILD = re.compile(r"^Process (?P<name>\S+):$")
# Exceptions of children whose parent is gone or was interrupted: consequences of the end.
OF_THE_END = ("EOFError", "KeyboardInterrupt")
WAITS_FOR_CHILD = re.compile(r"/multiprocessing/\w+\.py$")


@dataclass(frozen=True, kw_only=True)
class ChildException:
    """One exception, in the form of exception.json."""

    name: str  # multiprocessing's name of the process
    exception: Cause


def child_exceptions(rank: RankEvidence) -> list[ChildException]:
    """In the order in which the children ended."""
    lines = rank.stderr_tail.splitlines()
    found = []
    for raised in read_log(numbered(rank.stderr_tail)).raised:
        told = OF_CHILD.match(lines[raised.line - 2]) if raised.line > 1 else None
        if told and raised.exception.type not in OF_THE_END and not follows_a_peer(raised.exception):
            found.append(ChildException(name=told["name"], exception=raised.exception))
    return found


def waits_for_children(blocked: BlockedRank) -> bool:
    """Whether its main thread waits on a queue, pipe or lock of multiprocessing."""
    frames = blocked.capture.main_frames
    return any(WAITS_FOR_CHILD.search(frame.filename) for frame in frames)


def has_dead_child(blocked: BlockedRank) -> bool:
    """Whether the kernel lists a child that has ended and that the rank has not reaped."""
    return any(not child.is_alive for child in blocked.capture.proc.children)
