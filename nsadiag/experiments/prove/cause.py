"""The line at which the ranks part from one process, by what each line made on both: no pattern of the sources decides."""

from __future__ import annotations

from collections.abc import Sequence

from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.experiments.prove.compare import Proof
from nsadiag.experiments.prove.factors import common_factor
from nsadiag.experiments.prove.record import Array
from nsadiag.experiments.prove.relation import Relation, relation
from nsadiag.experiments.prove.statements import Made, Reads, Statements, Touch

Found = tuple[str, str]  # the line, and what it shows
SHARE = 1e-3
NEITHER = "the first value that is none of one process's: no copy of it, no cut and no part of a sum"
PART = "each rank's part of a sum, and used as if it were all of it"
SETTINGS = {
    "rate": "from this line on the learning rate is not one process's",
    "trained": "from this line on other parameters are trained than in one process",
}
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
            return self._numbers() or self._set_apart("trained") or self._behind("parameter")
        if self._proof.rates is not None and self._proof.steps:
            return self._numbers() or self._set_apart("rate")
        return (
            self._set_apart("trained")
            or self._forward()
            or self._parted()
            or self._scaled()
            or (self._backward() if self._proof.at_backward else None)
            or self._behind("gradient")
            or self._backward()
        )

    # -- forward ----------------------------------------------------------------------------------

    def _forward(self) -> Found | None:
        """The first value with a gradient that no copy, cut or sum explains; then what it was made of, if that is wrong already."""
        for made in self._made.made:
            if made.graded and not made.backward and not self._explained(made):
                origin = self._origin(made)
                says = PART if self._explained(origin) else NEITHER
                return origin.place, f"{_named(origin)} is {says}"
        return None

    def _explained(self, made: Made) -> bool:
        return made.found.explains(self._world, made.size)

    def _origin(self, made: Made) -> Made:
        """The line that made what is wrong already in what this one reads; or gave what is a part of a sum its name there."""
        for _ in range(12):
            made = self._made.same_before(made)
            before = [
                each for name in self._reads.at(made.place) if (each := self._last(name, made)) is not None
            ]
            wrong = [each for each in before if not self._explained(each) and not self._is_rank(each)]
            if not wrong:
                sums = [
                    each for each in before if each.graded and each.size > 1 and each.found.kind == "partial"
                ]
                return sums[0] if sums else made
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
        """The number of ranks, or a rank's own place: as many whole steps from the first one's as it has ranks before it."""
        values = [row.value for row in made.rows]
        if made.whole.stored or any(value is None or value != int(value) for value in values):
            return False
        first, *rest = [int(value) for value in values if value is not None]
        steps = {(value - first) / rank for rank, value in enumerate(rest, 1)}
        is_place = first == made.whole.value and len(steps) == 1 and 0 not in steps
        return is_place or set(values) == {float(self._world)}

    def _parted(self) -> Found | None:
        place = self._made.parted if self._are_replicas() else ""  # stages do other things
        return (place, "some ranks come to this line, and others do not") if place else None

    def _are_replicas(self, step: int | None = None) -> bool:
        """True where all ranks hold parameters of the same names."""
        at = self._made.step if step is None else step
        held = [{row.name for row in rank.rows("parameter", at)} for rank in self._made.ranks]
        return all(each == held[0] for each in held)

    # -- backward ---------------------------------------------------------------------------------

    def _scaled(self) -> Found | None:
        """All gradients by one factor: the line that made the loss's factor, where backward leaves it, or a line shows where it comes in."""
        factor = common_factor(self._proof.differing)
        losses = [m for m in self._made.made if m.graded and not m.backward and m.size == 1]
        if not factor or self._right or not losses:
            return None
        times = _times(losses[-1])
        before = [m.whole.number for m in losses if _is_near(_times(m), times / factor)]
        if self._changed_later() and not before:
            return None
        after = [m for m in losses if before and _is_near(_times(m), times) and m.whole.number > max(before)]
        made = self._made.same_before(after[0] if after else losses[-1])
        return made.place, f"{_named(made)} has the factor {factor:.4g} that all gradients have"

    def _changed_later(self) -> bool:
        """Whether lines behind backward change these gradients."""
        ranks = self._made.touches("gradient")
        return any(
            len({t.stack[0] for t in named.get(name, [])}) > 1 for named in ranks for name in self._wrong
        )

    def _backward(self) -> Found | None:
        """From the last value of forward: the first whose gradient is none of one process's."""
        forward = [m for m in self._made.made if m.graded and not m.backward and m.pulled.kind != "unknown"]
        wrong = [n for n, m in enumerate(forward) if m.pulled.kind == "other"]
        if not wrong:
            return self._own_backward()
        first = wrong[-1]
        if own := self._own_backward(self._made.arrived(forward[first])):
            return own
        parts = [
            n
            for n, m in enumerate(forward)
            if n >= first and m.found.kind == "equal" and m.pulled.kind == "partial"
        ]
        if parts and forward[first].found.kind == "cut":
            whole = forward[parts[0]]
            return (
                whole.place,
                f"{_named(whole)} is put together from all ranks, and in backward a part of its gradient comes back",
            )
        at = parts[0] if parts else first
        at = max(n for n, m in enumerate(forward) if n >= at and self._made_of(m, forward[at]))
        return (
            self._user_of(forward[at]),
            f"behind this line the gradient of {_named(forward[at])} is none of one process's, while what follows is right",
        )

    def _own_backward(self, until: int | None = None) -> Found | None:
        """In a `backward` of the user's, before that gradient arrives: the first value that is none of one process's, of one that was."""
        given: dict[str, Made] = {}
        for made in self._made.made:
            if not made.backward or not made.whole.stored:
                continue
            function = made.place.rpartition(":")[2]
            if made.whole.local_name:
                given[made.key[1].partition("(")[0]] = made
            elif made.key[1] == "return" and function != ">":  # what else there is may not be filled yet
                if until is not None and made.whole.offset >= until:
                    break
                if made.found.kind == "other" or (function in given and self._loses(given[function], made)):
                    origin = self._origin(made)
                    return origin.place, f"in backward, {_named(origin)} is {NEITHER}"
        return None

    def _loses(self, given: Made, returned: Made) -> bool:
        """Whether what came in was one process's, and goes out by a factor of it."""
        return given.found.kind != "unknown" and self._explained(given) and not self._explained(returned)

    def _made_of(self, made: Made, first: Made) -> bool:
        """The same value under another name."""
        return made.whole.local == first.whole.local and self._made.same_before(
            made
        ) is self._made.same_before(first)

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
        wrong = [touch for name in sorted(self._wrong) for touch in ranks[pair.rank].get(name, [])]
        right = [touch for name in sorted(self._right) for touch in ranks[pair.rank].get(name, [])]
        known = {line for touch in right for line in touch.stack}
        alone = [line for touch in wrong[::-1] for line in touch.stack if line not in known]
        if alone and right:
            return alone[0], f"{pair.name} comes this way, and what is right does not"
        seen = {line for touch in wrong for line in touch.stack}
        other = [touch.stack[0] for touch in right if touch.stack[0] not in seen]
        if other:
            return other[0], f"{LEAVES_OUT} {pair.name}"
        if place := self._of_some(mine):
            return place, f"this line changes {pair.name} on some ranks, and not on others"
        if kind == "gradient" and (turned := self._turned(pair.name, mine)):
            return turned, f"from this line on the gradient of {pair.name} is none of one process's"
        return None

    def _of_some(self, ranks: Sequence[Sequence[Touch]]) -> str:
        """The first line that changes it on some ranks alone, where all hold the same parameters."""
        if not self._are_replicas() or not all(ranks):
            return ""
        places = [[touch.stack[0] for touch in each] for each in ranks]
        return next((at for each in places for at in each if not all(at in other for other in places)), "")

    def _turned(self, name: str, ranks: Sequence[Sequence[Touch]]) -> str:
        """The change from which on it is none of what one process has there, or only by a factor."""
        if not ranks or len({len(each) for each in ranks}) != 1 or len(ranks[0]) < 2:
            return ""
        wholes = self._made.beside(name, "gradient", ranks)
        if len(wholes) != len(ranks[0]):
            return ""
        found = [self._beside([each[n].row for each in ranks], whole) for n, whole in enumerate(wholes)]
        if _is_right(found[-1]) or found[-1].kind == "unknown":
            return ""
        right = max((n for n, each in enumerate(found) if _is_right(each)), default=0)
        if found[-1].kind in ("equal", "cut"):  # by a factor: since it was right, else since it was reduced
            turn = next((n for n in range(right + 1, len(found)) if found[n].kind == found[-1].kind), 0)
        else:
            turn = (
                max((n for n, each in enumerate(found) if each.kind not in ("other", "unknown")), default=-1)
                + 1
            )
        return ranks[0][turn].stack[0] if 0 < turn < len(found) else ""

    def _beside(self, rows: list[Kept], whole: Array) -> Relation:
        return relation([rank.numbers(row) for rank, row in zip(self._made.ranks, rows, strict=True)], whole)

    def _set_apart(self, kind: str) -> Found | None:
        place = self._made.set_apart(kind) if self._are_replicas(0) else ""
        return (place, SETTINGS[kind]) if place else None

    # -- numbers ----------------------------------------------------------------------------------

    def _numbers(self) -> Found | None:
        """The first number that all ranks share, which is neither one process's nor its part, nor the number of ranks."""
        for place, name, values, whole in self._made.numbers():
            if len(set(values)) != 1 or not whole or values[0] in (whole, float(self._world)):
                continue
            if abs(values[0] * self._world - whole) > SHARE * abs(whole):
                return place, f"{name} is {values[0]:.6g} on each rank, {whole:.6g} in one process"
        return None


def _times(made: Made) -> float:
    return made.found.factor if made.found.kind == "partial" else made.found.factor * len(made.rows)


def _named(made: Made) -> str:
    name = made.key[1]
    return "what it returns" if name == "return" else name


def _is_near(value: float, wanted: float) -> bool:
    return abs(value - wanted) < SHARE * abs(wanted)


def _is_right(found: Relation) -> bool:
    return found.kind in ("equal", "cut") and _is_near(found.factor, 1)
