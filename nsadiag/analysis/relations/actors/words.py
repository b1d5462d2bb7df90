"""Sentences about stands and waits: who, in which call, at which line, and for what."""

from __future__ import annotations

from pathlib import PurePosixPath

from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.facts.actors.stands import PEERS, Stand
from nsadiag.analysis.relations.actors.graph import CallGraph, CallWait, Node
from nsadiag.evidence.records import Place

DOING = {
    "lock": "a lock or event that no thread of its process is left to give",
    "queue": "a queue of its own process that nothing fills",
    "socket": "an answer from outside the job",
    "pipe": "a pipe",
    "process": "a program that it started",
    "io": "a file",
    "sleep": "a timer",
    "signal": "a signal",
    "loader": "its DataLoader",
    "backward": "its backward pass",
    "device": "its GPU",
    "collective": "members of its group that none of the others is known to be",
    "transfer": "a member of its group that none of the others is known to be",
    "serves": "the next request",
}

BETWEEN_ROLES = {
    "answer": "waits for an answer of {name}",
    "message": "waits for a message of {name}",
    "pipe": "waits at a pipe for {name}",
    "thread": "waits for another thread of its process",
    "task": "waits for another task of its process",
    "memory": "asks again and again for a value in memory that it shares with {name}",
}
MOST_HOSTS = 4  # in a sentence


def at(place: Place | None) -> str:
    """` at file:line`, or nothing."""
    return f" at {PurePosixPath(place.file).name}:{place.line}" if place else ""


def standing(job: ActorJob, stand: Stand) -> str:
    """`rollout-1 is in Rollout.generate at rl.py:30`."""
    call = f" is in {stand.task.name}" if stand.task and stand.task.kind != "DRIVER_TASK" else " is"
    if call == " is" and stand.place is None:
        return job.name(stand.number)
    return f"{job.name(stand.number)}{call}{at(stand.place)}"


def waits_for(job: ActorJob, graph: CallGraph, edge: CallWait) -> str:
    """A node's wait, as a clause behind its name: `waits for rollout-1 to return generate()`."""
    target = graph.nodes[edge.waited_for]
    name = job.name(target.number) if target.number >= 0 else "a worker"
    if edge.kind == "group":
        return f"waits in {edge.what} for {name}, {_absent(target)}"
    if edge.kind == "queued":
        return f"waits for {edge.what}, which is queued at {name} behind {_running(target)}"
    if edge.kind in BETWEEN_ROLES:
        return f"{BETWEEN_ROLES[edge.kind].format(name=name)}{_there(target)}"
    if edge.kind == "file":
        return f"asks again and again for the file {edge.what}, which {name} would write"
    if edge.kind == "key":
        return f"waits for the key {edge.what} of a store, which {name} would set{_there(target)}"
    if edge.kind == "coordinator":
        return f"returns {edge.what} only once {name} has called it again"
    if target.state == "unknown":
        return f"waits for {edge.what} of {name}, which is on its way"
    if edge.kind == "resources" and target.state == "unplaced":
        return f"waits for {edge.what}, for which Ray has no room"
    if edge.kind == "resources":
        return f"needs {edge.what}, of which {name} holds some"
    if target.state == "unplaced":
        return f"waits for {edge.what} of {name}, which was never started"
    return f"waits for {name} to return {edge.what}"


def _there(target: Node) -> str:
    return f", which is{at(target.stand.place)}" if target.stand and target.stand.place else ""


def _absent(target: Node) -> str:
    if target.state == "dead":
        return "which is dead"
    if target.state == "idle" and target.stand is not None:
        return "which serves no request"
    if target.state == "idle":
        return "in which no call runs"
    stand = target.stand
    if stand is None:
        return "which is not in it"
    if stand.inner and stand.doing in PEERS:
        return f"which is in {stand.inner}{at(stand.place)}"
    return f"which is{_call(stand)}{at(stand.place)}"


def _call(stand: Stand) -> str:
    return f" in {stand.task.method}()" if stand.task and stand.task.kind != "DRIVER_TASK" else ""


def _running(target: Node) -> str:
    stand = target.stand
    return f"{stand.task.method}()" if stand and stand.task else "another call"


def chain(job: ActorJob, graph: CallGraph, edges: list[CallWait]) -> str:
    """Several waits in a row."""
    parts = []
    for edge in edges:
        node = graph.nodes[edge.waiter]
        name = job.name(node.number) if node.number >= 0 else "it"
        place = at(node.stand.place) if node.stand else ""
        parts.append(f"{name}{place and f' ({place[4:]})'} {waits_for(job, graph, edge)}")
    return "; ".join(parts)


def begun(sentence: str) -> str:
    """The sentence with a capital, unless it begins with a name, which stays as the user wrote it."""
    plain = sentence.startswith(("the driver", "members of", "call ", "task "))
    return sentence[:1].upper() + sentence[1:] if plain else sentence


def on_hosts(job: ActorJob, numbers: tuple[int, ...]) -> str:
    """The hosts of these, as a sentence of its own, where the job is on several."""
    found = job.hosts_of(numbers)
    if not found or len(found) > MOST_HOSTS:
        return ""
    words = "; ".join(
        f"{several([job.name(n) for n in each])} {'are' if len(each) > 1 else 'is'} on {host}"
        for host, each in found.items()
    )
    return f" {begun(words)}."


def several(names: list[str], most: int = 4) -> str:
    """`a, b and 3 more`."""
    if len(names) <= 1:
        return names[0] if names else "nobody"
    if len(names) <= most:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:most])} and {len(names) - most} more"
