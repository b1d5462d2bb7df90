"""The steps of one frame, nested by the loops of its source: iteration is compared with iteration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nsadiag.analysis.paths.walk import Executed
from nsadiag.source.patterns.statements import LoopLines


@dataclass(eq=False)
class Rounds:
    """All iterations of a loop that one execution of it made."""

    loop: LoopLines
    each: list[list[Node]]

    @property
    def made(self) -> int:
        """The number of times that the body began: a head alone is the end of the loop."""
        return sum(any(_step(n).line > self.loop.head or isinstance(n, Rounds) for n in one[1:]) or self.loop.head == self.loop.body
                   for one in self.each)  # fmt: skip


Node: TypeAlias = Executed | Rounds


def nested(steps: Sequence[Executed], loops: Sequence[LoopLines]) -> list[Node]:
    """The steps, with those of a loop in its iterations."""
    found: list[Node] = []
    at = 0
    while at < len(steps):
        loop = next((each for each in loops if each.first <= steps[at].line <= each.last), None)
        if loop is None:
            found.append(steps[at])
            at += 1
            continue
        end = at
        while end < len(steps) and loop.first <= steps[end].line <= loop.last:
            end += 1
        inner = [each for each in loops if loop.first < each.first and each.last <= loop.last]
        found.append(Rounds(loop, [_iteration(one, loop, inner) for one in _iterations(steps[at:end], loop)]))
        at = end
    return found


def _iterations(steps: Sequence[Executed], loop: LoopLines) -> Iterator[list[Executed]]:
    one: list[Executed] = []
    for step in steps:
        if step.line == loop.head and one:
            yield one
            one = []
        one.append(step)
    yield one


def _iteration(steps: list[Executed], loop: LoopLines, inner: list[LoopLines]) -> list[Node]:
    """The head's own steps, then the body, nested again."""
    behind = next((n for n, step in enumerate(steps) if step.line >= loop.body), len(steps))
    return [*steps[:behind], *nested(steps[behind:], inner)]


def _step(node: Node) -> Executed:
    while isinstance(node, Rounds):
        node = next(each for one in node.each for each in one)
    return node


def first_step(nodes: Sequence[Node]) -> Executed | None:
    """The first of their steps."""
    return _step(nodes[0]) if nodes else None


def steps_in(nodes: Sequence[Node]) -> Iterator[Executed]:
    """All steps of the frame itself."""
    for node in nodes:
        if isinstance(node, Rounds):
            for one in node.each:
                yield from steps_in(one)
        else:
            yield node
