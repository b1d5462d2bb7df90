"""The line at which the ranks part from one process, by what each line made on both: no pattern of the sources decides."""

from __future__ import annotations

from collections.abc import Sequence

from nsadiag.experiments.prove.compare import Proof
from nsadiag.experiments.prove.factors import common_factor
from nsadiag.experiments.prove.relation import relation
from nsadiag.experiments.prove.statements import Made, Reads, Statements, Touch, line_of

Found = tuple[str, str]  # the line, and what it shows
SHARE = 1e-3
LEAVES_OUT = "what is right is changed from here on, without"


def cause_of(proof: Proof, made: Statements) -> Found | None:
    """The first that says something: numbers, forward, gradients in backward, gradients behind it, the optimizer's work."""
    return _Search(proof, made).found()


class _Search:
    def __init__(self, proof: Proof, made: Statements) -> None:
        self._proof, self._made, self._reads = proof, made, Reads()
        self._world = len(made.ranks)
        self._wrong = {pair.name for pair in proof.differing}
        self._right = {pair.name for pair in proof.pairs} - self._wrong

    def found(self) -> Found | None:
        if self._proof.what == "update":
            return self._numbers() or self._behind("parameter")
        if self._proof.rates is not None and self._proof.steps:
            return self._numbers()
        return self._forward() or self._parted() or self._scaled() or self._behind("gradient") or self._backward()

    # -- forward ----------------------------------------------------------------------------------

    def _forward(self) -> Found | None:
        """The first value with a gradient that no copy, cut or sum explains; then what it was made of, if that is wrong already."""
        for made in self._made.made:
            if made.graded and not made.backward and not self._explained(made):
                origin = self._origin(made)
                return origin.place, f"{_named(origin)} is the first value that is none of one process's: no copy of it, no cut and no part of a sum"
        return None

    def _explained(self, made: Made) -> bool:
        return made.found.explains(self._world, made.size)

    def _origin(self, made: Made) -> Made:
        """What the line reads is wrong already: where that was made."""
        for _ in range(12):
            made = self._made.same_before(made)
            before = [each for name in self._reads.at(made.place) if (each := self._last(name, made)) is not None]
            wrong = [each for each in before if not self._explained(each) and not self._is_rank(each)]
            if not wrong:
                break
            made = max(wrong, key=lambda each: (each.size > 1, each.whole.number))
        return made

    def _last(self, name: str, before: Made) -> Made | None:
        """The value that the name had there: of the same function, or an argument of it."""
        function = before.place.rpartition(":")[2]
        found = None
        for each in self._made.made:
            if each.whole.number >= before.whole.number:
                break
            own = each.key[1].partition("[")[0] == name and each.place.rpartition(":")[2] == function
            given = each.whole.local_name == name and each.key[1].startswith(f"{function}(")
            if own or given or (each.key[1] == name and name.startswith("self.")):
                found = each
        return found

    def _is_rank(self, made: Made) -> bool:
        """The rank itself, or the number of ranks: no mistake."""
        values = [row.value for row in made.rows]
        return not made.whole.stored and (values == list(range(self._world)) or set(values) == {float(self._world)})

    def _parted(self) -> Found | None:
        held = [{row.name for row in rank.rows("parameter", self._made.step)} for rank in self._made.ranks]
        place = self._made.parted if all(each == held[0] for each in held) else ""  # stages do other things
        return (place, "some ranks come to this line, and others do not") if place else None

    # -- backward ---------------------------------------------------------------------------------

    def _scaled(self) -> Found | None:
        """All gradients by one factor, as backward leaves them: the line that made the loss's factor."""
        factor = common_factor(self._proof.differing)
        if not factor or self._right or self._changed_later():
            return None
        losses = [m for m in self._made.made if m.graded and not m.backward and m.size == 1]
        if not losses:
            return None
        last = losses[-1]
        times = _times(last)
        before = [m for m in losses if abs(_times(m) - times / factor) < SHARE * times / factor]
        after = [m for m in losses if abs(_times(m) - times) < SHARE * times and (not before or m.whole.number > before[-1].whole.number)]
        made = self._made.same_before(after[0]) if after else last
        return made.place, f"{_named(made)} has the factor {factor:.4g} that all gradients have"

    def _changed_later(self) -> bool:
        """Whether lines behind backward change these gradients."""
        return any(len(_places(named.get(name, []))) > 1 for named in self._made.touches("gradient") for name in self._wrong)

    def _backward(self) -> Found | None:
        """From the last value of forward: the first whose gradient is none of one process's."""
        forward = [m for m in self._made.made if m.graded and not m.backward and m.pulled.kind != "unknown"]
        wrong = [n for n, m in enumerate(forward) if m.pulled.kind == "other"]
        first = wrong[-1] if wrong else 0
        parts = [n for n, m in enumerate(forward) if n >= first and m.found.kind == "equal" and m.pulled.kind == "partial"]
        at = parts[0] if parts else first if wrong else None
        if at is None:
            return None
        at = max(n for n, m in enumerate(forward) if n >= at and self._made_of(m, forward[at]))
        return self._user_of(forward[at]), f"behind this line the gradient of {_named(forward[at])} is none of one process's, while what follows is right"

    def _made_of(self, made: Made, first: Made) -> bool:
        """The same value under another name."""
        return made.whole.local == first.whole.local and self._made.same_before(made) is self._made.same_before(first)

    def _user_of(self, made: Made) -> str:
        """The next line that reads it, in the function where it has its name."""
        name = made.whole.local_name or made.key[1].partition("[")[0]
        given = bool(made.whole.local_name)
        function = made.key[1].partition("(")[0] if given else made.place.rpartition(":")[2]
        for each in self._made.made:
            later = each.whole.number > made.whole.number and each.place.rpartition(":")[2] == function
            if later and name in self._reads.at(each.place) and each.place != made.place:
                return each.place
        return made.place

    # -- behind backward --------------------------------------------------------------------------

    def _behind(self, kind: str) -> Found | None:
        """The line from which on a gradient is wrong; else the one that changes those that are right, and leaves these out."""
        ranks = self._made.touches(kind)
        pair = max(self._proof.differing, key=lambda each: each.relative)
        mine = [named.get(pair.name, []) for named in ranks]
        if kind == "gradient" and (turned := self._turned(pair.name, mine)):
            return turned, f"from this line on the gradient of {pair.name} is none of one process's"
        wrong = [touch for name in sorted(self._wrong) for touch in ranks[pair.rank].get(name, [])]
        right = [touch for name in sorted(self._right) for named in ranks for touch in named.get(name, [])]
        known = {line for touch in right for line in touch.stack}
        alone = [line for touch in wrong[::-1] for line in touch.stack if line not in known]
        if alone and right:
            return alone[0], f"{pair.name} comes this way, and what is right does not"
        seen = {line for touch in wrong for line in touch.stack}
        other = [touch.stack[0] for touch in right if touch.stack[0] not in seen]
        if other:
            return other[0], f"{LEAVES_OUT} {pair.name}"
        return None

    def _turned(self, name: str, ranks: Sequence[Sequence[Touch]]) -> str:
        """Each change beside what one process has in the end."""
        one = self._made.one.named("gradient", self._made.step).get(name)
        if one is None or not ranks or len({len(each) for each in ranks}) != 1 or not ranks[0]:
            return ""
        whole, before = self._made.one.numbers(one), False
        for turn, touch in enumerate(ranks[0]):
            rows = [each[turn].row for each in ranks]
            parts = [rank.numbers(row) for rank, row in zip(self._made.ranks, rows, strict=True)]
            found = relation(parts, whole)
            if before and found.kind == "other":
                return touch.stack[0]
            before = found.kind in ("partial", "equal", "cut")
        return ""

    # -- numbers ----------------------------------------------------------------------------------

    def _numbers(self) -> Found | None:
        """The first number that all ranks share, which is neither one process's nor its part, nor the number of ranks."""
        for place, name, values, whole in self._made.numbers():
            if len(set(values)) != 1 or values[0] in (whole, float(self._world)) or not line_of(place):
                continue
            if abs(values[0] * self._world - whole) > SHARE * abs(whole):
                return place, f"{name} is {values[0]:.6g} on each rank, {whole:.6g} in one process"
        return None


def _times(made: Made) -> float:
    return made.found.factor if made.found.kind == "partial" else made.found.factor * len(made.rows)


def _named(made: Made) -> str:
    name = made.key[1]
    return "what it returns" if name == "return" else name


def _places(touches: Sequence[Touch]) -> set[str]:
    return {touch.stack[0] for touch in touches}


