"""Traits in which one rank is like another: evidence without what is a rank's own (its numbers, ports, addresses, times).

Two ranks that agree in every trait are taken for each other. A difference that means nothing costs another close
look; one that is overlooked costs the verdict. So every field of RankEvidence is a trait, unless it is listed as one
that says nothing of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from nsadiag.analysis.facts.locations import most_seen, of_faults
from nsadiag.analysis.facts.thread_state import syscall_of
from nsadiag.analysis.records import CaptureEvidence, RankEvidence
from nsadiag.evidence.documents.captures import GilOwner
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.documents.python_stacks import PythonThread
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.user_code import counted, is_user, valid_roots

DIGITS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
PEERS = re.compile(r"\b(to|from)=\d+")
OPEN_SHOWN = 6
# A running process shows another of these at every moment.
TELLING_STATES = ("T", "t", "D", "Z")
# Where ranks of one job come from the same lines, and what they do there.
VISITS = (Kind.FORWARD, Kind.BACKWARD, Kind.COLLECTIVE, Kind.PROCESS_GROUP, Kind.WRAP, Kind.DATA, Kind.IO)
SETTINGS = ("versions", "flags", "attention", "autocast", "autocast_now", "model", "optimizer")
# Of an operation, what each rank's own batch leaves as it is.
PROGRAM = (
    "kind", "place", "name", "evaluating", "optimizer", "settings", "held", "of", "reduces", "roles", "inside", "frozen",
    "missing", "unexpected", "epoch", "shuffles", "names", "of_state",
)  # fmt: skip
TRAINED = ("step", "used")
# The end of what torch, NCCL or a native library say as they fail (analysis.facts.exits).
LAST_LINES = 40


def stack(rank: RankEvidence) -> Any:
    """The main thread's frames, whether both snapshots showed the same, and the lines at which other threads stand."""
    shown = [c for c in rank.captures if c.stacks]
    if not shown:
        return None
    frames = [_frames(c.main_thread) for c in shown[-2:]]
    lines = {tuple(f) for t in shown[-1].other_threads for f in _frames(t) if is_user(f[1])}
    return {"main": frames[-1], "same": frames[0] == frames[-1], "others": sorted(map(list, lines))}


def process(rank: RankEvidence) -> Any:
    """Alive or stopped, in which system call, who owns the GIL, whose bytes do not leave, what of the look failed."""
    last = rank.last_capture
    if last is None:
        return None
    owner = last.answers.gil_owner or GilOwner()
    call = syscall_of(last.proc)
    return {
        "states": [_state(c) for c in rank.captures[-2:]],
        "call": call[0] if call else None,
        "gil": [owner.function, owner.file, owner.line],
        "reads_as": last.answers.reads_as,
        "children": sorted({c.state for c in last.proc.children} & {*TELLING_STATES}),
        "unsent": _unsent(rank),
        "gaps": sorted({gap.capture for gap in last.gaps}),
    }


def events(rank: RankEvidence) -> Any:
    """Events that the main thread has begun and not ended, innermost first."""
    shown = rank.recording.open_spans[:OPEN_SHOWN]
    # With the shapes, which are the program's, and without the peers, which are the rank's.
    return [[e.kind, _general(e.name), e.site, PEERS.sub(r"\1=#", e.detail)] for e in shown]


def visited(rank: RankEvidence) -> Any:
    """A sum over the lines from which it called what."""
    recording = rank.recording
    events = recording.events
    begun = events[(events["phase"] == Phase.BEGIN) & events["kind"].isin(VISITS)]
    calls = {(event.kind, event.name, event.site) for event in recording.decode(begun)}
    return _sum(sorted({(kind, _general(name), site) for kind, name, site in calls}))


def operations(rank: RankEvidence) -> Any:
    """The operations of its first steps by what the program asks of them, whatever the values that it gives them."""
    return [
        [row.step, [[getattr(o, name) for name in PROGRAM] for o in row.operations]] for row in rank.observed
    ]


def trained(rank: RankEvidence) -> Any:
    """Parameters as the optimizer's steps began, and the gradients that they used: equal where they are copies."""
    return [
        [row.step, o.kind, o.values]
        for row in rank.observed
        for o in row.operations
        if o.kind in TRAINED and o.values
    ]


def end(rank: RankEvidence) -> Any:
    """The rank's end, and its last exceptions."""
    told = rank.end
    return {
        **{key: getattr(told, key) for key in ("exit_code", "signal", "by_us", "clean")},
        "over": told.t_s is not None,
        "exception": _exception(rank.exception),
        "leaving": [rank.leaving.call, rank.leaving.place] if rank.leaving else None,
        "faults": repr(of_faults(rank.faults)) if rank.faults else None,
        "steps": told.steps,
    }


Trait = Callable[[RankEvidence], Any]

# These travel whole, since they say at a glance what is going on.
SHOWN: dict[str, Trait] = {"end": end, "stack": stack, "process": process, "events": events}
# Fields that the shown traits have, or that are a rank's own: its number, and where its evidence lies.
NO_TRAIT_OF_THEIR_OWN = frozenset(
    {"rank", "meta", "gaps", "source", "recording", "captures", "end", "exception", "leaving", "faults"}
)
# Views of a field without what is the rank's own in it.
VIEWS: dict[str, Trait] = {
    "raised": lambda rank: sorted({_json(_exception(row)) for row in rank.raised}),
    "attempts": lambda rank: [[number, _exception(row)] for number, row in rank.attempts],
    "signals": lambda rank: len(rank.signals),
    "loaders": lambda rank: [row.place for row in rank.loaders],
    "settings": lambda rank: {key: told for key in SETTINGS if (told := getattr(rank.settings, key))},
    "ungraded": lambda rank: [*rank.ungraded, *(c.ungraded for c in rank.captures if c.ungraded)],
    # Copies of parameters are equal to the last bit.
    "replicas": lambda rank: [[row.step, row.parameters, row.buffers] for row in rank.replicas],
    "stderr_tail": lambda rank: _general("\n".join(rank.stderr_tail.splitlines()[-LAST_LINES:])),
    "samples": lambda rank: repr(most_seen(rank.samples)) if rank.samples else None,
}
# In these each rank may well have its own: should all differ, they are the first to be left out. What ranks have in
# common in them is a trait of its own, which stays.
VARYING = ("replicas", "observed", "stderr_tail", "given", "first_steps", "samples")


def _field(name: str) -> Trait:
    return VIEWS.get(name, lambda rank: getattr(rank, name))


FIELDS = [field.name for field in dataclasses.fields(RankEvidence) if field.name not in NO_TRAIT_OF_THEIR_OWN]
# Of these, sums: whoever is unlike the others is looked at closely.
SUMMED: dict[str, Trait] = {
    "visited": visited,
    "operations": operations,
    **{name: _field(name) for name in FIELDS if name not in VARYING},
    "trained": trained,
    **{name: _field(name) for name in VARYING},
}
# The first tell most: where very many ranks all differ in one of the last, it is left out (digests.equivalence).
TRAITS = (*SHOWN, "calls", *SUMMED)


def traits_of(rank: RankEvidence) -> dict[str, object]:
    """By name; what the rank has nothing of is missing."""
    with counted(valid_roots(rank.meta.user_code)):
        return _traits_of(rank)


def _traits_of(rank: RankEvidence) -> dict[str, object]:
    shown = {name: trait(rank) for name, trait in SHOWN.items()}
    summed = {name: _sum(_timeless(value)) for name, trait in SUMMED.items() if (value := trait(rank))}
    return {name: value for name, value in {**shown, **summed}.items() if value}


def _frames(thread: PythonThread) -> list[list[Any]]:
    return [[f.name, f.filename, f.line] for f in thread.frames]


def _state(capture: CaptureEvidence) -> str:
    state = capture.proc.state
    return state if state in TELLING_STATES else ""


def _unsent(rank: RankEvidence) -> int:
    """Connections on which bytes waited in both snapshots (analysis.rules.blocked.network_stall)."""
    looks = [c.proc.fds.open for c in rank.captures[-2:]]
    waiting = [{(row.local, row.peer) for row in rows if row.unsent} for rows in looks]
    return len(set.intersection(*waiting)) if waiting else 0


def _general(text: str) -> str:
    return DIGITS.sub("#", text)


def _exception(told: Raised | None) -> Any:
    if not told:
        return None
    frames = [[f.file, f.line, f.function] for f in told.frames]
    message = _general(told.message)[:500]
    return [told.type, message, frames, told.place]


# Times, processes and ranks in documents.
OWN = frozenset(
    {"t_s", "pid", "tid", "rank", "ranks", "peer", "thread", "device", "global_ranks", "elapsed_s"}
)


def _timeless(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in OWN and not str(k).startswith("t_")}
    if isinstance(value, set):
        return sorted(value)
    return [_timeless(v) for v in value] if isinstance(value, list | tuple) else value


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _sum(value: Any) -> str:
    return hashlib.sha256(_json(value).encode()).hexdigest()[:16]
