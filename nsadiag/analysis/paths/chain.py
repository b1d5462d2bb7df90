"""From a parting back to an origin: the steps on the recorded paths that made the ranks differ, each with what is on record."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.paths.partings import Compared, Pair, Parting
from nsadiag.analysis.paths.walk import Exc, Executed, Frame
from nsadiag.analysis.paths.writers import Slices
from nsadiag.evidence.records import Origin
from nsadiag.evidence.rehearsal.calls import CREATION
from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.statements import Statement, joins_around

DEEPEST = 7  # links
MOST_QUESTIONS = 120
MOST_OF_A_ROLE = 2  # links from a condition to the rank that it asks for
CONSTRUCTOR = ".__init__"
RECENT = 8  # calls before the parting, in which a turn that was never taken before may have caused it


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """One link: the two ranks' steps at one line, and what differs there."""

    pair: Pair
    parting: Parting | None = None
    name: Read = ()  # that the line wrote
    values: tuple[str, str] = ("", "")  # of the name, on each
    raised: tuple[Exc | None, Exc | None] = (None, None)
    caught: tuple[Exc | None, Exc | None] = (None, None)
    inside: int | None = None  # of a branch that only this side takes, by right
    joined: bool = False  # a `with Join(...)` around the loop that ranks left at different times
    origin: Origin = "unknown"

    @property
    def is_recorded(self) -> bool:
        """Whether the record itself shows that they differ."""
        return self.parting is not None or any(self.raised) or len({*self.values}) > 1

    @property
    def at(self) -> tuple[str, int]:
        return self.pair[0].at


class Chains:
    """Chains of two walks."""

    def __init__(self, code: SourceModel, compared: Compared) -> None:
        self._compared = compared
        self._slices = (Slices(code, compared.walks[0]), Slices(code, compared.walks[1]))
        self._asked = 0
        self._known: dict[tuple[int, int], list[Found]] = {}

    def chain(self) -> tuple[Found, ...]:
        """The links, the nearest to the calls first; empty where the paths do not tell."""
        # That rounds have other numbers explains nothing.
        return tuple(found for found in self._links() if found.at != self._compared.head)

    def of_another_way(self) -> tuple[Found, ...]:
        """From the last turn by which the first rank left where the other goes on with transfers, or where its path ends."""
        last_step = self._compared.walks[1].last
        for parting in reversed(self._compared.partings):
            stays = [any(call.is_transfer for call in made) for made in parting.announced]
            last = self._slices[0].statement(parting.at[0])
            left = parting.rounds is not None or (last is not None and last.kind in ("for", "while"))
            # DDP reduces in C++: of a rank that waits there no call is on record.
            ends = not any(parting.announced) and parting.holds(1, last_step) and self._decides(parting)
            if ends or (left and stays == [False, True]):
                return tuple(self._of_parting(parting.by or parting, 0))
        return ()

    def _links(self) -> tuple[Found, ...]:
        first = self._compared.decisive
        if first is not None:
            return (*self._joined(first), *self._from_control(first))
        if unlike := self._compared.unlike:
            # The line of the calls is where the ranks stand; why they are not alike was decided before.
            pair = (unlike[0].step, unlike[1].step)
            before = self._of_pair(pair, 1)
            call = Found(pair=pair, values=(unlike[0].text, unlike[1].text))
            # Which groups there are is for all ranks to create: that some create others is the fault itself.
            return tuple(before if before and unlike[0].op != CREATION else [call, *before])
        return ()

    def _joined(self, first: Parting) -> Iterator[Found]:
        """The `with Join(...)` around the loop: that one rank has fewer inputs is what it is for."""
        code, (a, b) = self._slices[0].code, (step.frame.steps for step in first.at)
        loop = self._slices[0].statement(first.at[0])
        is_loop = loop is not None and loop.kind == "for"
        lines = joins_around(code.file(first.at[0].frame.file), first.at[0].line) if is_loop else set()
        met = [next((step for step in reversed(steps) if step.line in lines), None) for steps in (a, b)]
        if met[0] is not None and met[1] is not None:
            yield Found(pair=(met[0], met[1]), joined=True)

    def cause(self, chain: tuple[Found, ...]) -> int:
        """The link to change: a condition by which the ranks parted, else what was made of that in which they may differ."""
        if self._is_choice(chain[0]):
            return self._chosen(chain)
        if chain[-1].origin == "unknown":
            return self._made_unlike(chain)
        # The last link is that in which they may: their numbers, their data, a file.
        return max(len(chain) - 2, 0)

    def _made_unlike(self, chain: tuple[Found, ...]) -> int:
        """The farthest link whose value is on record to differ, or the return that it came from: what lies behind is a guess."""
        number = max((n for n, each in enumerate(chain) if each.name and each.is_recorded), default=0)
        behind = self.statement(chain[number + 1]) if number and number + 1 < len(chain) else None
        return number + 1 if behind is not None and behind.kind == "return" else number

    def _chosen(self, chain: tuple[Found, ...]) -> int:
        """The link at which a function that ranks asked chose its answer: `usable(batch)`, `turn = balance.turn()`.

        0 of a flag that was set before, and of who one is: that ranks differ in by right.
        """
        first = self.statement(chain[0])
        if chain[0].joined or chain[0].inside is not None or first is None or not first.asks_for_a_flag:
            return 0
        if first.asks_an_attribute and not self._asks_a_function(chain):
            return 0  # it was set before
        answers = list(itertools.takewhile(lambda each: len(each.name) < 2, chain[1:]))
        chose = (n for n, each in enumerate(answers, 1) if not each.name and self._chooses(each))
        is_asked = (
            chain[-1].origin not in ("rank", "data", "unknown")
            and answers == [*chain[1:]]
            and not chain[-1].name
        )
        number = next(chose, len(chain) - 1 if is_asked else 0)
        is_role = chain[-1].origin == "rank" and number >= len(chain) - MOST_OF_A_ROLE
        return 0 if is_role else number

    def _asks_a_function(self, chain: tuple[Found, ...]) -> bool:
        """Whether the second link lies in what the first one's line called: of an attribute, a property."""
        return len(chain) > 1 and any(
            _is_within(chain[1].pair[0], frame) for frame in chain[0].pair[0].frames
        )

    def explains(self, chain: tuple[Found, ...]) -> bool:
        """Whether it begins with a choice, or comes to an origin: else the record only passes on that ranks differed."""
        return self._is_choice(chain[0]) or chain[-1].origin != "unknown"

    def _chooses(self, found: Found) -> bool:
        statement = self.statement(found)
        return statement is not None and statement.chooses_a_value

    def _is_choice(self, found: Found) -> bool:
        """Whether the ranks could have agreed there: a loop over data, a return, and what was given only pass on a difference."""
        if found.joined or found.inside is not None or any(found.caught):
            return True
        statement = self._slices[0].statement(found.pair[0])
        is_over_data = statement is not None and statement.kind == "for"
        is_over_data |= any(each and each.ends_an_iterator for each in found.raised)
        return found.parting is not None and not is_over_data and self._decides(found.parting)

    def _from_control(self, first: Parting) -> list[Found]:
        """The chain from the line that decided: where the line of the calls decides nothing itself, one further back."""
        own = first.by or first
        chain = self._of_parting(own, 0)
        if self._decides(own):
            return [*self._inside_of_a_role(own, chain), *chain]
        for number, found in enumerate(chain):
            if found.parting is not None and self._decides(found.parting):
                return chain[number:]
        # No name leads from a framework's call to what a callback of the user's has set.
        fresh = next((p for p in reversed(self._recent(first)) if self._decides(p) and self._is_new(p)), None)
        return self._of_parting(fresh.by or fresh, 0) if fresh is not None else chain

    def _inside_of_a_role(self, parting: Parting, chain: list[Found]) -> list[Found]:
        """The condition by which a rank left a branch that is its own by right, before what all ranks do behind it."""
        if chain[-1].origin != "rank" or len(chain) > MOST_OF_A_ROLE:
            return []
        for side, steps in enumerate(parting.sides):
            own = self._slices[side]
            last = own.statement(steps[-1]) if steps else None
            unwound = steps[-1].inner[-1] if steps and steps[-1].inner else None
            if isinstance(unwound, Exc):
                pair = (steps[-1], steps[-1])
                raised = (unwound, None) if side == 0 else (None, unwound)
                return [Found(pair=pair, parting=parting, inside=side, raised=raised)]
            for step in reversed(steps[:-1]) if last and last.leaves else ():
                found = own.statement(step)
                inside = found is not None and found.kind == "if" and found.has_in_body(steps[-1].line)
                if inside or own.is_handler(step):
                    return [Found(pair=(step, step), parting=parting, inside=side)]
        return []

    def _decides(self, parting: Parting) -> bool:
        """Whether the last common line chose: by a condition, a loop's end or an exception."""
        found = self._slices[0].statement(parting.at[0])
        return found is None or found.decides or any(self._raised(parting))

    def _recent(self, first: Parting) -> list[Parting]:
        """Partings before this one, and behind the last few calls that matched."""
        own = first.announced[0]
        until = own[0].index if own else self._compared.walks[0].last.index + 1
        met = [call.index for call in self._compared.walks[0].calls if call.index < until]
        since = met[-RECENT] if len(met) >= RECENT else 0
        before = self._compared.partings[: self._compared.partings.index(first)]
        return [p for p in before if p.index >= since and not any(p.announced)]

    def _is_new(self, parting: Parting) -> bool:
        """Whether a rank took this turn for the first time, or the ranks parted there for the first time."""
        walks, parted = self._compared.walks, self._compared.partings
        took = zip(walks, parting.then, strict=True)
        return any(step is not None and walk.visit(step) == 1 for walk, step in took) or not any(
            each.at[0].at == parting.at[0].at for each in parted[: parted.index(parting)]
        )

    def _of_parting(self, parting: Parting, depth: int) -> list[Found]:
        raised = self._raised(parting)
        ended = any(each and each.ends_an_iterator for each in raised)
        if any(raised) and not ended:
            return self._of_exception(parting, raised, depth)
        if self._is_entered_by_one(parting.at):
            return [Found(pair=parting.at, parting=parting)]
        before = self._of_pair(self._entry(parting.at), depth + 1)
        if not (ended and before):
            origin, before = self._led(parting.at, before)
        else:
            origin = "unknown"
        return [Found(pair=parting.at, parting=parting, raised=raised, origin=origin), *before]

    def _is_entered_by_one(self, pair: Pair) -> bool:
        """Whether one rank alone got into the function that the line calls: what stands around that decided, not what it was given."""
        entered = [any(self._names(step, frame) for frame in step.frames) for step in pair]
        return entered[0] != entered[1]

    def _of_exception(
        self, parting: Parting, raised: tuple[Exc | None, Exc | None], depth: int
    ) -> list[Found]:
        """The places where it was swallowed and where it was raised, and what led there."""
        side = 0 if raised[0] else 1
        pair = self._deepest(raised[side], parting)  # type: ignore[arg-type]
        links = [Found(pair=pair, parting=parting, raised=raised, origin="exception")]
        caught = self._next(parting.at[side])
        if caught is not None and self._slices[side].is_handler(caught):
            links.insert(0, Found(pair=(caught, caught), parting=parting, caught=raised))
        led = self._with(
            pair[0] if side == 0 else None, pair[1] if side == 1 else None, parting.at, inner=True
        )
        before = self._of_parting(led, depth + 1) if led is not None and depth < DEEPEST else []
        return [*links, *before]

    def _entry(self, pair: Pair) -> Pair:
        """The pair at which the ranks began the `for` that this one is of: what it iterates over was decided there."""
        found = self._slices[0].statement(pair[0])
        if found is None or found.kind != "for":
            return pair
        a, b = (self._first_of(step, found) for step in pair)
        return a, b

    def _first_of(self, step: Executed, loop: Statement) -> Executed:
        steps = step.frame.steps
        at = bisect.bisect_left(steps, step.index, key=lambda each: each.index)
        while at and loop.first <= steps[at - 1].line <= loop.last:
            at -= 1
        return steps[at]

    def _next(self, step: Executed) -> Executed | None:
        """The step behind it in its frame."""
        steps = step.frame.steps
        at = bisect.bisect_right(steps, step.index, key=lambda each: each.index)
        return steps[at] if at < len(steps) else None

    def _raised(self, parting: Parting) -> tuple[Exc | None, Exc | None]:
        """An exception that only one side saw at the last common step, in it or in what it called."""
        if any(parting.raised):
            return parting.raised
        seen = [next((e for e in step.inner if isinstance(e, Exc)), None) for step in parting.at]
        return (
            (seen[0], None)
            if seen[0] and not seen[1]
            else (None, seen[1])
            if seen[1] and not seen[0]
            else (None, None)
        )

    def _deepest(self, raised: Exc, parting: Parting) -> Pair:
        """The user's innermost step that it came through, on both sides where both have it."""
        step = raised.step
        while frame := next((f for f in reversed(step.frames) if f.steps), None):
            inner = next((e for e in reversed(frame.steps[-1].inner) if isinstance(e, Exc)), None)
            if inner is None or inner.type != raised.type:
                break
            step = frame.steps[-1]
        side = 0 if parting.at[0].frame is raised.step.frame else 1
        other = self._compared.walks[1 - side]
        twin = other.visited(step.at, self._compared.walks[side].visit(step)) or parting.at[1 - side]
        if twin.at != step.at:
            twin = step
        return (step, twin) if side == 0 else (twin, step)

    # -- why a line did not do the same ---------------------------------------------------------------

    def _of_pair(self, pair: Pair, depth: int, names: tuple[Read, ...] | None = None) -> list[Found]:
        """The best continuation behind a line: one that is on record and comes to an origin before any other."""
        self._asked += 1
        key = pair[0].index, pair[1].index
        if names is None and key in self._known:
            return self._known[key]
        if depth >= DEEPEST or self._asked > MOST_QUESTIONS:
            return []
        if names is not None:
            return self._best(pair, depth, names)
        self._known[key] = []  # of what comes back to it
        self._known[key] = found = self._best(pair, depth, None)
        return found

    def _best(self, pair: Pair, depth: int, names: tuple[Read, ...] | None) -> list[Found]:
        # A rank that a function was given explains what it made of it only by way of the function.
        inside = self._inside(pair, depth) if names is None else []
        best = inside
        if best and best[-1].origin != "unknown":
            return best
        for found in self._continuations(pair, depth, names):
            if _worth(found) > _worth(best):
                best = found
            if best and best[-1].origin != "unknown" and all(each.is_recorded for each in best[:-1]):
                break
        return inside if inside and best[-1].origin == "unknown" and not best[0].is_recorded else best

    def _continuations(self, pair: Pair, depth: int, names: tuple[Read, ...] | None) -> Iterator[list[Found]]:
        reads = self._reads(pair) if names is None else names
        differing = [read for read in reads if len({*self._values(pair, read)}) > 1]
        for read in differing:
            yield self._of_name(pair, read, depth)
        # Equal values explain nothing; of tensors and loaders none is on record.
        for read in (read for read in reads if self._values(pair, read) == ("", "")):
            yield self._of_name(pair, read, depth)

    def _reads(self, pair: Pair) -> tuple[Read, ...]:
        return self._slices[0].reads(pair[0])

    def _values(self, pair: Pair, read: Read) -> tuple[str, str]:
        a, b = (walk.value(step, read) for walk, step in zip(self._compared.walks, pair, strict=True))
        return a, b

    def _inside(self, pair: Pair, depth: int) -> list[Found]:
        """The last parting in the functions that the line called, else what one that it names has returned."""
        a, b = ([frame for frame in step.frames if not _is_comprehension(frame)] for step in pair)
        if not a or not b:
            return []
        inside = [p for p in self._compared.partings if any(_is_within(p.at[0], f) for f in a)]
        for parting in reversed(inside):
            if parting.at[0].index > pair[0].index and not any(parting.announced):
                return self._of_parting(parting.by or parting, depth)
        made = next(
            ((x, y) for x, y in zip(reversed(a), reversed(b), strict=False) if self._names(pair[0], x)), None
        )
        if made is None or made[0].code.text != made[1].code.text:
            return []
        if made[0].code.text.endswith(CONSTRUCTOR):
            return self._of_constructor(made, depth)
        ends = [own.steps[-1] if own.steps else None for own in made]
        if ends[0] is None or ends[1] is None or ends[0].at != ends[1].at:
            return []
        returned = (ends[0], ends[1])
        found = self._slices[0].statement(returned[0])
        if found is None or found.kind != "return":
            return []
        origin, before = self._led(returned, self._of_pair(returned, depth + 1))
        return [Found(pair=returned, origin=origin), *before]

    def _names(self, step: Executed, frame: Frame) -> bool:
        """Whether the line's own statement calls the function: what a framework calls gives it no value."""
        statement = self._slices[0].statement(step)
        name = frame.code.text.removesuffix(CONSTRUCTOR).rpartition(".")[2]
        return statement is not None and statement.calls(name)

    def _of_constructor(self, made: tuple[Frame, Frame], depth: int) -> list[Found]:
        """The last line that gave the object an attribute, and in which the ranks' values differed."""
        a, b = (frame.steps for frame in made)
        for pair in reversed([(x, y) for x, y in zip(a, b, strict=False) if x.at == y.at]):
            kept = [name for name in self._slices[0].writes(pair[0]) if len(name) > 1]
            if kept and any(len({*self._values(pair, read)}) > 1 for read in self._reads(pair)):
                before = self._of_pair(pair, depth + 1)
                if before and before[-1].origin != "unknown":
                    return [Found(pair=pair, name=kept[0]), *before]
        return []

    def _of_name(self, pair: Pair, read: Read, depth: int) -> list[Found]:
        a, b = (s.writer(step, read) for s, step in zip(self._slices, pair, strict=True))
        values = self._values(pair, read)
        if (a is None) != (b is None) or (a and b and a.at != b.at):
            parting = self._with(a, b, pair)
            return self._of_parting(parting, depth) if parting else []
        if a is None or b is None:
            return self._of_argument(pair, read, values, depth)
        if self._slices[0].argument(a.frame, read[0]) is None or len(read) > 1 or a.frame is pair[0].frame:
            return self._of_writer((a, b), read, values, depth)
        return []

    def _of_writer(self, writers: Pair, read: Read, values: tuple[str, str], depth: int) -> list[Found]:
        origin, before = self._led(writers, self._of_pair(writers, depth + 1))
        return [Found(pair=writers, name=read, values=values, origin=origin), *before]

    def _of_argument(self, pair: Pair, read: Read, values: tuple[str, str], depth: int) -> list[Found]:
        frames: tuple[Frame, Frame] = (pair[0].frame, pair[1].frame)
        callers = (frames[0].caller, frames[1].caller)
        given = self._slices[0].argument(frames[0], read[0])
        if given is None or callers[0] is None or callers[1] is None or callers[0].at != callers[1].at:
            return []
        above = (callers[0], callers[1])
        before = self._of_pair(above, depth, given) if given else []
        if before:
            return before
        return [Found(pair=above, name=read, values=values, origin=self._own_origin(above))]

    def _with(
        self, a: Executed | None, b: Executed | None, pair: Pair, *, inner: bool = False
    ) -> Parting | None:
        """The last parting before the line, or `inner` in it, that one of the two steps is inside of."""
        for parting in reversed(self._compared.partings):
            before = inner or parting.at[0].index < pair[0].index
            if (
                before
                and not any(parting.raised)
                and any(step is not None and parting.holds(side, step) for side, step in enumerate((a, b)))
            ):
                return parting.by or parting
        return None

    def _led(self, pair: Pair, before: list[Found]) -> tuple[Origin, list[Found]]:
        """The origin of a line, and what led to it: where the line itself is an origin, only what the record shows led to it."""
        own = self._own_origin(pair)
        if own != "unknown" and not (before and before[0].is_recorded and before[-1].origin != "unknown"):
            return own, []
        return "unknown" if before else own, before

    def _own_origin(self, pair: Pair) -> Origin:
        found = self._slices[0].statement(pair[0])
        return found.origin if found else "unknown"

    def statement(self, found: Found) -> Statement | None:
        """The statement of a link."""
        return self._slices[0].statement(found.pair[0])


def _worth(found: list[Found]) -> tuple[bool, bool, int, int]:
    """Better is what comes to an origin, by steps that are on record."""
    if not found:
        return False, False, 0, 0
    recorded = sum(each.is_recorded for each in found)
    return True, found[-1].origin != "unknown", recorded - (len(found) - recorded), -len(found)


def _is_comprehension(frame: Frame) -> bool:
    """Before Python 3.12 it has a frame of its own; what it reads is what its statement reads."""
    return frame.code.text.endswith(("comp>", "<genexpr>"))


def _is_within(step: Executed, frame: Frame) -> bool:
    outer: Frame | None = step.frame
    while outer is not None:
        if outer is frame:
            return True
        outer = outer.caller.frame if outer.caller else None
    return False
