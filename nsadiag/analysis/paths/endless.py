"""A rank that goes round a loop of its own far beyond any round before, and gets no nearer to its end."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.paths.walk import Announced, Exc, Executed, Frame, Walk
from nsadiag.analysis.paths.walks import are_turns, walks_of
from nsadiag.evidence.records import Place
from nsadiag.evidence.rehearsal.paths import TENSOR
from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.evidence.user_code import is_user
from nsadiag.source.model import SourceModel, place
from nsadiag.source.patterns.endings import Atom, Ending, EndlessLoop, endless_around

FEWEST = 100  # iterations since the last call
MOST_LISTED = 2
NAN = "nan"
BEYOND = 10  # times as many as between any two calls before
SIZE = re.compile(r"\w+ of (\d+)(?:: .*)?", re.DOTALL)  # and the first of what is in it
# Whoever raises one of these again and again gets on by nothing that the world does.
OF_DATA = {
    "ArithmeticError", "AssertionError", "AttributeError", "IndexError", "JSONDecodeError", "KeyError", "LookupError",
    "OverflowError", "TypeError", "UnicodeDecodeError", "ValueError", "ZeroDivisionError",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Endless:
    """The loop of a rank, since its last call."""

    rank: int
    file: str
    function: str
    loop: EndlessLoop
    iterations: int
    before: int  # at most, between two earlier calls
    values: Mapping[str, tuple[str, ...]]  # of each name that its endings read, all that it had
    waiting: tuple[int, ...]  # peers that stand in a call
    last: Executed  # where its path ends
    raises: str = ""  # the exception that each round ends in

    @property
    def is_weak(self) -> bool:
        """Whether an exception may end it as well, of which no condition tells."""
        return not self.loop.endings or self.loop.tries or self.loop.nexts

    @property
    def place(self) -> Place:
        return place(self.file, self.loop.first, None if self.function == "<module>" else self.function)

    @property
    def stands_at(self) -> Place:
        """The last line that is on record: somewhere in the loop, or in what it calls."""
        name = self.last.frame.code.text.rpartition(".")[2]
        return place(self.last.frame.file, self.last.line, None if name == "<module>" else name)

    @property
    def words(self) -> str:
        """The rest of a sentence that begins with the rank: what keeps it in."""
        stays = ", ".join(f"`{name}` was {_listed(seen)}" for name, seen in self.values.items())
        return (
            f"went around `{self.loop.text}` {self.iterations:,} times or more since its last call, "
            f"{self.before:,} times at most before"
            + (f"; {stays}" if stays else "")
            + (f"; each ended in a {self.raises}" if self.raises else "")
        )


def _listed(seen: Sequence[str]) -> str:
    return " and ".join(seen) if len(seen) <= MOST_LISTED else f"{seen[0]} ... {seen[-1]}"


def endless_of_case(case: Case) -> tuple[Endless, ...]:
    """The loops of all ranks of a rehearsal; nothing where no paths were recorded, or turns alone: those of a loop may be given up."""
    if are_turns(case):
        return ()
    found = endless_loops(case.cell.code, case.once(walks_of))
    return tuple(each for each in found if not _has_another_thread(case, each.rank))


def _has_another_thread(case: Case, rank: int) -> bool:
    """Whether another thread of the rank was last seen in the user's code: it may be about to end the loop."""
    shown = [each for each in case.cell.rank(rank).captures if each.stacks]
    others = [thread for thread in shown[-1].stacks if not thread.is_main] if shown else []
    return any(is_user(frame.filename) for thread in others for frame in thread.frames)


def endless_loops(code: SourceModel, walks: Mapping[int, Walk]) -> Iterator[Endless]:
    """By rank that is in such a loop while a peer waits in a call; of all ranks where each is in one."""
    waiting = tuple(rank for rank, walk in walks.items() if waits(walk))
    found = [
        each
        for rank, walk in walks.items()
        if rank not in waiting and (each := _of_walk(code, walk, waiting)) is not None
    ]
    if waiting or len(found) == len(walks):
        yield from found


def waits(walk: Walk) -> bool:
    """Whether the path ends in a call."""
    # The last line on record may be of a function that the line of the call has called before.
    frame = walk.stack[-1]
    inner = frame.steps[-1].inner if frame.steps else []
    return bool(inner) and isinstance(inner[-1], Announced)


def _of_walk(code: SourceModel, walk: Walk, waiting: tuple[int, ...]) -> Endless | None:
    since = walk.calls[-1].index if walk.calls else 0
    for frame in walk.stack:
        last = frame.steps[-1] if frame.steps else None
        for loop in endless_around(code.file(frame.file), last.line) if last else []:
            steps = _in_loop(frame, loop, since)
            iterations = sum(step.line == loop.head for step in steps)
            before = _most_between_calls(walk, (frame.file, loop.head))
            if iterations < max(FEWEST, BEYOND * before) or not _stays(walk, loop, steps):
                continue
            values = {
                ".".join(r): _seen(walk, steps, e.line, r)
                for e in loop.endings
                for a in e.atoms
                for r in a.reads
            }
            return Endless(
                rank=walk.rank, file=frame.file, function=frame.code.text.rpartition(".")[2], loop=loop,
                iterations=iterations, before=before, waiting=waiting, last=walk.last, raises=_raised(steps),
                values={name: seen for name, seen in values.items() if any(seen)},
            )  # fmt: skip
    return None


def _stays(walk: Walk, loop: EndlessLoop, steps: Sequence[Executed]) -> bool:
    """Whether all that could end the loop is on record, and came no nearer to it."""
    if loop.bare or (loop.sleeps and (loop.tries or not loop.endings)):
        return False
    if loop.tries and _raised(steps) not in OF_DATA:
        return False
    if not loop.endings:
        # Whatever it calls may end it, by an exception; but not where it calls nothing, or each round finds nothing to do.
        idle = all(step.line in loop.heads and not step.inner for step in steps)
        return idle or not loop.calls or bool(_raised(steps))
    return _is_known(walk, loop.endings, steps) and not _gets_nearer(walk, loop.endings, steps)


def _raised(steps: Sequence[Executed]) -> str:
    """The one type of exception that the loop's own lines saw, in each of its rounds; "" where there is none, or several."""
    by_line: dict[int, list[int]] = {}
    kinds = set()
    for number, step in enumerate(steps):
        for each in step.inner:
            if isinstance(each, Exc):
                kinds.add(each.type)
                by_line.setdefault(step.line, []).append(number)
    if len(kinds) != 1 or len(by_line) != 1:
        return ""
    (line, seen), (kind,) = next(iter(by_line.items())), kinds
    # The last round may be under way.
    return kind if len(seen) >= sum(step.line == line for step in steps) - 1 else ""


def _in_loop(frame: Frame, loop: EndlessLoop, since: int) -> list[Executed]:
    """The frame's last steps, all in the loop and behind the last call."""
    found = []
    for step in reversed(frame.steps):
        if not loop.first <= step.line <= loop.last or step.index <= since:
            break
        found.append(step)
    return found[::-1]


def _most_between_calls(walk: Walk, at: tuple[str, int]) -> int:
    visits, calls = walk.visits_of(at), [call.index for call in walk.calls]
    bounds = [0, *(bisect.bisect_right(visits, call) for call in calls)]
    return max((b - a for a, b in itertools.pairwise(bounds)), default=0)


def _seen(walk: Walk, steps: Sequence[Executed], line: int, read: Read) -> tuple[str, ...]:
    return tuple(dict.fromkeys(walk.text(step, read) for step in steps if step.line == line))


def _is_known(walk: Walk, endings: Sequence[Ending], steps: Sequence[Executed]) -> bool:
    """Whether all that would end it is on record: of what an object holds, or the world says, nobody knows if it changes."""
    for ending in endings:
        if not any(step.line == ending.line for step in steps):
            continue  # it was never asked
        for atom in ending.atoms:
            if _is_decided(walk, atom, steps, ending.line):
                continue
            if atom.asks:
                return False
            for read in atom.reads:
                seen = _seen(walk, steps, ending.line, read)
                if "" in seen or (read not in atom.sizes and any(map(SIZE.fullmatch, seen))):
                    return False
    return True


def _gets_nearer(walk: Walk, endings: Sequence[Ending], steps: Sequence[Executed]) -> bool:
    """Whether something that an ending reads still took values, in the later half, that it never had before."""
    for ending in endings:
        own = [step for step in steps if step.line == ending.line]
        for atom in ending.atoms:
            if _is_decided(walk, atom, own, ending.line):
                continue
            series = [[walk.text(step, read) for step in own] for read in atom.reads]
            if any(_is_new(each) for each in series) and not _moves_away(walk, atom, own):
                return True
    return False


def _is_decided(walk: Walk, atom: Atom, steps: Sequence[Executed], line: int) -> bool:
    """Whether a comparison was false for good in the later half, whatever its other side came to."""
    own = [step for step in steps if step.line == line]
    late = own[len(own) // 2 :]
    for read, value in atom.ordered:
        seen = {text.removeprefix(TENSOR) for text in _seen(walk, late, line, read)}
        if len(seen) == 1 and seen <= {NAN, value}:
            return True
    return False


def _is_new(values: Sequence[str]) -> bool:
    half = len(values) // 2
    sizes = [int(found[1]) for value in values if (found := SIZE.fullmatch(value))]
    if sizes and len(sizes) == len(values):
        return min(sizes[half:]) < min(sizes[:half] or sizes)
    return bool(set(values[half:]) - set(values[:half]))


def _moves_away(walk: Walk, atom: Atom, steps: Sequence[Executed]) -> bool:
    """Whether two numbers that it compares only get further apart."""
    if atom.sides is None or len(steps) < 2:
        return False
    distances = []
    for step in (steps[len(steps) // 2], steps[-1]):
        sides = [_number(walk.text(step, s)) if isinstance(s, tuple) else s for s in atom.sides]
        if sides[0] is None or sides[1] is None:
            return False
        distances.append(sides[0] - sides[1])
    return distances[0] * distances[1] > 0 and abs(distances[1]) >= abs(distances[0])


def _number(text: str) -> float | None:
    try:
        return float(text.removeprefix(TENSOR))
    except ValueError:
        return None
