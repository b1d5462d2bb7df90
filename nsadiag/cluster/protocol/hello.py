"""The greetings that agents exchange when they meet, and the check that they belong together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nsadiag.errors import EXIT_ENVIRONMENT, EXIT_USAGE

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,100}")
MOST_WORDS = 64


@dataclass(frozen=True, kw_only=True)
class Hello:
    """One agent: who it is, and what it was started with."""

    node_rank: int
    nnodes: int
    host: str
    agent: str  # drawn at its start
    task: str  # what it was asked to run, as a digest: the spec and its cells, or the kind of command
    versions: dict[str, str]  # of what has to be the same on all nodes
    gpus: int = 0
    cores: int = 1

    def document(self) -> dict[str, Any]:
        return asdict(self)


def hello_of(document: Mapping[str, Any]) -> Hello | None:
    """None where the document is none: it names a directory, and is shown on a terminal."""
    try:
        hello = Hello(
            node_rank=int(document["node_rank"]),
            nnodes=int(document["nnodes"]),
            host=str(document["host"]),
            agent=str(document["agent"]),
            task=str(document["task"]),
            versions={str(k): str(v) for k, v in dict(document["versions"]).items()},
            gpus=int(document["gpus"]),
            cores=int(document["cores"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    words = [hello.host, hello.agent, hello.task, *hello.versions, *hello.versions.values()]
    return hello if len(words) <= MOST_WORDS and all(WORD.fullmatch(word) for word in words) else None


def host_word(name: str) -> str:
    """A host's name in the letters that a hello may have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-")[:100] or "node"


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The reason for refusing an agent. `fatal`: the run cannot go on either, since the nodes were started differently."""

    message: str
    hint: str
    exit_code: int
    fatal: bool = True

    def document(self) -> dict[str, Any]:
        return asdict(self)


def mismatch(first: Hello, other: Hello, met: Mapping[int, Hello]) -> Mismatch | None:
    """The mismatch that keeps `other` from joining node 0, or None; `met` are the agents that have joined."""
    name = f"node {other.node_rank} ({other.host})"
    if other.nnodes != first.nnodes:
        return Mismatch(
            message=f"{name} was started with --nnodes {other.nnodes}, and node 0 ({first.host}) with --nnodes {first.nnodes}",
            hint="give the same --nnodes on every node",
            exit_code=EXIT_USAGE,
        )
    if not 0 < other.node_rank < first.nnodes:
        return Mismatch(
            message=f"{other.host} was started with --node-rank {other.node_rank}, of {first.nnodes} nodes",
            hint=f"node ranks go from 0 to {first.nnodes - 1}, one to a node",
            exit_code=EXIT_USAGE,
        )
    taken = met.get(other.node_rank)
    if taken is not None and taken.agent != other.agent:
        return Mismatch(
            message=f"--node-rank {other.node_rank} was given to {taken.host} and to {other.host}",
            hint="give each node a rank of its own",
            exit_code=EXIT_USAGE,
            fatal=False,
        )
    for package in sorted({*first.versions, *other.versions}):
        ours, theirs = first.versions.get(package, "none"), other.versions.get(package, "none")
        if ours != theirs:
            return Mismatch(
                message=f"{name} has {package} {theirs}, and node 0 ({first.host}) has {package} {ours}",
                hint="install the same versions on every node",
                exit_code=EXIT_ENVIRONMENT,
            )
    if other.task != first.task:
        return Mismatch(
            message=f"{name} was started with something else than node 0 ({first.host}): another command or spec, or other cells of it",
            hint="give the same command line on every node, but for --node-rank, and the same version of the spec",
            exit_code=EXIT_USAGE,
        )
    return None


def named_apart(met: Mapping[int, Hello]) -> dict[int, str]:
    """A name for each node: its host's, with the node's rank where hosts are called the same."""
    hosts = [hello.host for hello in met.values()]
    return {
        rank: hello.host if hosts.count(hello.host) == 1 else f"{hello.host}-node{rank}"
        for rank, hello in met.items()
    }
