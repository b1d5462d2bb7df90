"""A chain as a verdict says it: a sentence for each link, and the values on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from nsadiag.analysis.paths.chain import Chains, Found
from nsadiag.analysis.paths.partings import Compared, Parting
from nsadiag.analysis.paths.walk import Announced, Executed, Walk
from nsadiag.evidence.phrases import count, middle_left_out
from nsadiag.evidence.records import Because, Link, Origin, Place, ValueOfRanks
from nsadiag.evidence.rehearsal.calls import SEND
from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.source.model import place
from nsadiag.source.patterns.statements import Statement

LONGEST = 70
MOST_VALUES = 4


def told(walks: Mapping[int, Walk], compared: Compared, chains: Chains, chain: tuple[Found, ...]) -> Because:
    """The chain as a value; its own line is that of the link that made the ranks differ."""
    links = tuple(_link(walks, compared, chains, found) for found in chain)
    return because_of(links, chains.cause(chain), chain[-1].origin)


def because_of(links: tuple[Link, ...], cause: int, origin: Origin) -> Because:
    """A chain, of which one link is the cause."""
    at = links[cause].at
    return Because(
        file=at.file, line=at.line, function=at.function, code=at.code,
        how="recorded" if any(link.how == "recorded" for link in links[: cause + 1]) else "inferred",
        origin=origin, chain=links,
    )  # fmt: skip


def of_transfer(call: Announced, rank: int) -> Because:
    """The line of a transfer that no peer answers, where the rank did in each round what it does in all."""
    at = place_of(call.step)
    what = "sends" if call.op == SEND else "receives"
    link = Link(
        at=at, because=f"rank {rank} {what} here, and no peer does its part", how="recorded", ranks=(rank,)
    )
    return because_of((link,), 0, "unknown")


def _link(walks: Mapping[int, Walk], compared: Compared, chains: Chains, found: Found) -> Link:
    statement = chains.statement(found)
    return Link(
        at=place_of(found.pair[0]),
        because=_sentence(compared, found, statement),
        how="recorded" if found.is_recorded else "inferred",
        ranks=(compared.walks[0].rank,),
        values=tuple(_values(walks, compared.walks[0], found, statement)),
    )


def place_of(step: Executed) -> Place:
    """Its line, as verdicts name it."""
    name = step.frame.code.text.rpartition(".")[2]
    return place(step.frame.file, step.line, None if name == "<module>" else name)


def _sentence(compared: Compared, found: Found, statement: Statement | None) -> str:
    a, b = compared.sides
    if found.joined:
        return f"Join answers for {a} or {b} as soon as it has no more inputs, and not in the order of the other's calls"
    if found.inside is not None:
        return _of_role(found, statement, *((a, b) if found.inside == 0 else (b, a)))
    if any(found.caught) or any(found.raised):
        return _of_exception(found, a, b)
    if found.parting is not None:
        return _of_parting(found.parting, statement, a, b)
    if found.name:
        name = ".".join(found.name)
        if found.is_recorded:
            return f"`{name}` was {found.values[0] or 'not set'} on {a} and {found.values[1] or 'not set'} on {b}"
        return f"`{name}` got its value here"
    if len({*found.values}) > 1:
        own = [" ".join(value.split("\t")[:1] + value.split("\t")[4:]) for value in found.values]
        return f"the same line called {own[0]} on {a} and {own[1]} on {b}"
    return "the value was returned here"


def _of_role(found: Found, statement: Statement | None, who: str, other: str) -> str:
    left = next((each.type for each in found.raised if each), "")
    if left:
        return f"{left} led {who} out of a branch that {other} does not take"
    is_tested = statement is not None and statement.test
    held = f"`if {_short(statement.test)}` held" if statement and is_tested else "an exception was caught"
    return f"{held} on {who} and led out of a branch that {other} does not take"


def _of_exception(found: Found, a: str, b: str) -> str:
    seen = found.caught if any(found.caught) else found.raised
    who, other, error = (a, b, seen[0]) if seen[0] else (b, a, seen[1])
    assert error is not None
    if any(found.caught):
        return f"{who} caught a {error.type} here"
    if error.ends_an_iterator:
        return f"the iterator had come to its end on {who}, and not on {other}"
    return f"{who} raised {error.type} here, and {other} did not"


def _of_parting(parting: Parting, statement: Statement | None, a: str, b: str) -> str:
    if parting.rounds and parting.loop:
        made = parting.rounds
        return f"{a} made {count(made[0], 'iteration')} of the loop, {b} {made[1] or 'none'}"
    inside = [
        statement is not None and step is not None and statement.has_in_body(step.line)
        for step in parting.then
    ]
    if statement is not None and inside[0] != inside[1]:
        held, other = (a, b) if inside[0] else (b, a)
        if statement.kind == "if":
            return f"`if {_short(statement.test)}` held on {held} and not on {other}"
        if statement.kind in ("for", "while"):
            return f"{other} left the loop, and {held} went on with another iteration"
    if any(parting.inner) and any(parting.announced):
        calls = [f"{who} made {_calls(each)}" for who, each in zip((a, b), parting.announced, strict=True)]
        return f"within this line {calls[0]}, and {calls[1]}"
    ways = [
        f"{who} went on to {_where(step, parting)}" for who, step in zip((a, b), parting.then, strict=True)
    ]
    return ", ".join(ways)


def _calls(made: list[Announced]) -> str:
    names = [each.op for each in made]
    return f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}" if names else "no call"


def _where(step: Executed | None, parting: Parting) -> str:
    if step is None:
        return "the end of the function"
    here = parting.at[0].frame.file
    return f"line {step.line}" if step.frame.file == here else f"{Path(step.frame.file).name}:{step.line}"


def _short(text: str) -> str:
    return middle_left_out(" ".join(text.split()), LONGEST)


def _values(
    walks: Mapping[int, Walk], own: Walk, found: Found, statement: Statement | None
) -> Iterator[ValueOfRanks]:
    """Values on every rank, at the same execution of the line, of each name that it reads."""
    number = own.visit(found.pair[0])
    names: tuple[Read, ...] = statement.reads if statement is not None else ()
    shown = 0
    for name in names:
        steps = {rank: walk.visited(found.pair[0].at, number) for rank, walk in walks.items()}
        by_rank = {str(r): v for r, s in steps.items() if s is not None and (v := walks[r].value(s, name))}
        if len({*by_rank.values()}) > 1 and shown < MOST_VALUES:
            shown += 1
            yield ValueOfRanks(name=".".join(name), by_rank=by_rank)
