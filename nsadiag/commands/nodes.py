"""`nsadiag run` and `nsadiag matrix` on several nodes: what the command of node 0 does, and what that of the others."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.cluster.join import Crew, dismiss, enter, farewell, gather
from nsadiag.cluster.place import Place, with_token
from nsadiag.cluster.protocol.hello import Hello, host_word
from nsadiag.cluster.protocol.tokens import TOKEN_VARIABLE
from nsadiag.cluster.watches import Crowd
from nsadiag.commands import output
from nsadiag.engines.room import this_machine
from nsadiag.engines.static_member import Member
from nsadiag.errors import EXIT_INTERNAL, NsadiagError, UsageError
from nsadiag.printing import note

SAME_EVERYWHERE = ("nsadiag", "torch")
TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
OWN_RENDEZVOUS = (
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
)


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """The result on a node other than 0."""

    node_rank: int
    name: str
    directory: Path
    shared: bool
    summary: str  # node 0's
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        where = {"directory": str(self.directory), "shared": self.shared}
        return {"node_rank": self.node_rank, "node": self.name, **where, "summary": self.summary, "exit_code": self.exit_code}  # fmt: skip

    def shown(self) -> str:
        """For a person."""
        kept = "" if self.shared else f"\nwhat this node saw: {self.directory}"
        return f"node {self.node_rank} ({self.name}): {self.summary or 'node 0 has ended the run'}{kept}"


def say(line: str) -> None:
    """Progress is on stderr."""
    note(f"nsadiag: {line}")


def hello_for(place: Place, task: Any) -> Hello:
    """This agent's greeting; `task` holds everything that has to be the same on every node."""
    machine, versions = this_machine(), output.versions()
    return Hello(
        node_rank=place.node_rank,
        nnodes=place.nnodes,
        host=host_word(platform.node()),
        agent=secrets.token_hex(8),
        task=hashlib.sha256(json.dumps(task, sort_keys=True, default=str).encode()).hexdigest()[:16],
        versions={name: versions[name] for name in SAME_EVERYWHERE if name in versions},
        gpus=len(machine.gpus),
        cores=machine.cores,
    )


def crowd() -> Crowd:
    """Evidence of very many ranks is reduced and chosen by analysis, which agents do not know."""
    from nsadiag.analysis.scale.digests.chosen import representatives_in
    from nsadiag.analysis.scale.digests.make import write_digest
    from nsadiag.analysis.scale.digests.representatives import FEW_RANKS

    return Crowd(few=FEW_RANKS, reduce=write_digest, choose=representatives_in)


def gathered(place: Place, task: Any) -> Crew:
    """Node 0: all are here. Raises NsadiagError, and has told those who came."""
    made = not place.token
    place = with_token(place)
    if made:
        say(f"on the other nodes, the same line with its own --node-rank, and {TOKEN_VARIABLE}={place.token}")
    return gather(place, hello_for(place, task), say)


def led(act: Callable[[], tuple[int, str]], crew: Crew) -> None:
    """Acts, and tells the others how it ended, whichever way that is. `act` returns exit code and summary."""
    try:
        code, summary = act()
        _tell_of_strangers(crew)
    except (NsadiagError, KeyboardInterrupt) as error:
        dismiss(crew, error)
        raise
    except BaseException as error:
        farewell(crew, {"message": f"nsadiag failed on node 0: {error!r}", "exit_code": EXIT_INTERNAL})
        raise
    farewell(crew, {"summary": summary, "exit_code": code})


def _tell_of_strangers(crew: Crew) -> None:
    """Whoever wanted to take part and could not."""
    for why, count in crew.hub.refused.items():
        say(f"refused {count} connection{'s' if count > 1 else ''}: {why}")


def member(place: Place, task: Any, *, out: Path | None, force: bool) -> Member:
    """Another node: let in, with a directory to write to. Raises NsadiagError."""
    seat = enter(place, hello_for(place, task), say)
    found = Member(
        seat, prepare=lambda path: output.prepare(path, path.name, force=force), out=out, crowd=crowd()
    )
    try:
        found.open()
    except BaseException:
        found.close()
        raise
    return found


def result_of(found: Member, code: int | None = None) -> NodeResult:
    return NodeResult(
        node_rank=found.seat.node_rank,
        name=found.name,
        directory=found.root.path,
        shared=found.shared,
        summary=found.summary,
        exit_code=found.exit_code if code is None else code,
    )


# -- a launcher line on several nodes -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Line:
    """A user's launcher line."""

    words: Sequence[str]
    behind: int | None  # where torchrun's own options begin; None if it is another launcher
    options: Mapping[str, str]  # torchrun's own, as far as they are about nodes

    @property
    def names_its_nodes(self) -> bool:
        return any(name in self.options for name in OWN_RENDEZVOUS)


def line_of(words: Sequence[str]) -> Line:
    """The parsed launcher line, with the options of torchrun on it."""
    behind = None
    if words and Path(words[0]).name == "torchrun":
        behind = 1
    elif len(words) > 2 and words[1] == "-m" and words[2] in TORCHRUN:
        behind = 3
    options: dict[str, str] = {}
    if behind is not None:
        for place, word in enumerate(words[behind:], behind):
            if word in ("-m", "--module", "--") or (not word.startswith("-") and word.endswith(".py")):
                break
            found = re.fullmatch(r"--([a-z_-]+)(?:=(.*))?", word)
            if found:
                value = found[2] if found[2] is not None else "".join(words[place + 1 : place + 2])
                options[found[1].replace("_", "-")] = value
    return Line(words=words, behind=behind, options=options)


def check_line(line: Line, place: Place) -> None:
    """Raises UsageError where the line does not fit the nodes that nsadiag was told of."""
    if "standalone" in line.options:
        raise UsageError(
            "--standalone makes a job of each node", "leave it out: nsadiag adds what torchrun needs"
        )
    expected = {"nnodes": place.nnodes, "node-rank": place.node_rank}
    for name, number in expected.items():
        told = line.options.get(name, "")
        if told.isdecimal() and int(told) != number:
            raise UsageError(
                f"torchrun is given --{name} {told}, and nsadiag --{name} {number}",
                f"leave torchrun's --{name} out: nsadiag adds it",
            )


def completed(line: Line, place: Place, endpoint: str) -> list[str]:
    """The line for this node: torchrun is told of the others where the user has not done so."""
    if line.behind is None or line.names_its_nodes:
        return list(line.words)
    address, _, port = endpoint.rpartition(":")
    more = ["--nnodes", str(place.nnodes), "--node-rank", str(place.node_rank), "--master-addr", address, "--master-port", port]  # fmt: skip
    return [*line.words[: line.behind], *more, *line.words[line.behind :]]
