"""Call paths of ranks, outermost frame first: as their stacks show, or as the source implies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import follows_a_peer
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.relations.timeline import Timelines
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.records import Place
from nsadiag.evidence.user_code import is_user
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import CallPath, Scope

DEEPEST = 30


class CallPaths:
    """Stacks of all ranks, and who calls whom among the user's functions."""

    def __init__(self, case: Case, program: Program, timelines: Timelines, *, still: bool) -> None:
        """`still`: the last snapshot shows the ranks as they were in the end."""
        self.program = program
        self.gone = frozenset(r.rank for r in case.cell.ranks if _came_to_its_end(r))
        self._now = {r.rank: () if r.rank in self.gone else _now(r, case, still) for r in case.cell.ranks}
        self._callers: dict[Scope, Place] = {}
        for path in (*self._now.values(), *_sampled(case.cell.ranks)):
            for caller, callee in itertools.pairwise(path):
                self._callers.setdefault(program.scope_of(callee.file, callee.line), caller)
        for rank, path in self._now.items():
            last = timelines.last(rank)
            if not path and rank not in self.gone and last is not None and last.place is not None:
                lost = _lost_a_peer(next(r for r in case.cell.ranks if r.rank == rank), last.t_ns)
                self._now[rank] = lost or self.to(last.place)

    def now(self, rank: int) -> CallPath:
        """The call path at the last snapshot, or when its peer's end ended it; empty of a rank that is gone."""
        return self._now.get(rank, ())

    def to(self, at: Place) -> CallPath:
        """A call path that ends at the line: as any stack has shown its callers, else as the only call in the source."""
        found, known = [at], {self.program.scope_of(at.file, at.line)}
        while len(found) < DEEPEST:
            caller = self._caller(self.program.scope_of(found[-1].file, found[-1].line))
            if caller is None or self.program.scope_of(caller.file, caller.line) in known:
                break
            known.add(self.program.scope_of(caller.file, caller.line))
            found.append(caller)
        return tuple(reversed(found))

    def is_unambiguous(self, at: Place) -> bool:
        """Whether no function on the path to that line is called from two places: else it may have been either."""
        functions = {self.program.scope_of(p.file, p.line).function for p in self.to(at)[1:]}
        return all(len(self.program.callers(name)) < 2 for name in functions if name)

    def _caller(self, scope: Scope) -> Place | None:
        if scope in self._callers or not scope.path:
            return self._callers.get(scope)
        calls = self.program.callers(scope.function)
        return locations.place(*calls[0], None) if len(calls) == 1 else None


def _came_to_its_end(rank: RankEvidence) -> bool:
    ended = rank.end.ended_itself and rank.end.signal is None
    return ended and rank.exception is None


def _now(rank: RankEvidence, case: Case, still: bool) -> CallPath:
    state = case.thread_states.get(rank.rank)
    if still and state is not None and state.frames:
        return tuple(reversed(state.frames))
    frames = (rank.exception or NOT_RAISED).frames
    if frames:
        return tuple(locations.place(f.file, f.line, f.function, f.code) for f in frames if is_user(f.file))
    return tuple(reversed(locations.all_of_faults(rank.faults)))


def _lost_a_peer(rank: RankEvidence, since_ns: int) -> CallPath:
    """The call path on which it learnt that a peer is gone, if a launcher ended it before that could end it."""
    row = rank.raised[-1] if rank.raised else NOT_RAISED
    if not row.in_main_thread or row.t_mono_ns < since_ns or not follows_a_peer(row):
        return ()
    return tuple(found for at in reversed(row.stack) if (found := locations.of_text(at)))


def _sampled(ranks: Iterable[RankEvidence]) -> Iterable[CallPath]:
    for rank in ranks:
        for sample in rank.samples:
            yield tuple(locations.place(*f) for f in reversed(sample.frames) if is_user(f.file))


def common_depth(a: CallPath, b: CallPath) -> int:
    """The number of outer frames that the two have in common."""
    same = itertools.takewhile(lambda pair: pair[0].is_at(pair[1]), zip(a, b, strict=False))
    return sum(1 for _ in same)


def is_further(program: Program, a: CallPath, b: CallPath) -> bool:
    """Whether `a` is further down in the function in which the two part, and came there without an exception.

    All that two stacks alone tell of who is ahead. An empty path is that of a rank which is gone.
    """
    depth = common_depth(a, b)
    if not a:
        return True
    if depth >= min(len(a), len(b)) or not _same(program, a[depth], b[depth]):
        return False
    return a[depth].line > b[depth].line and not program.is_handling(a[depth], of=b[depth])


def conditions_around(program: Program, path: CallPath, depth: int = 0) -> list[Condition]:
    """Branches and loops around the path's lines from that frame inwards, outermost first."""
    return [g for place in path[depth:] for g in program.around(place.file, place.line)]


def differing_conditions(program: Program, a: CallPath, b: CallPath) -> list[Condition]:
    """Branches and loops that `a` is in and `b` is not, outermost first."""
    depth = common_depth(a, b)
    common = {_identity(g) for g in conditions_around(program, b)}
    # A frame that both share holds both.
    return [g for g in conditions_around(program, a, depth) if _identity(g) not in common]


def early_exits(program: Program, a: CallPath, b: CallPath) -> list[Condition]:
    """Early exits before the lines of `a` by which `b` may have gone where it is, innermost first."""
    depth = common_depth(a, b)
    found: list[Condition] = []
    for number in range(len(a) - 1, depth - 1, -1):
        at = a[number]
        there = (
            b[number].line if number == depth and number < len(b) and _same(program, at, b[number]) else None
        )
        found += [g for g in reversed(program.jumps_before(at.file, at.line)) if _may_have_left(g, at, there)]
    return found


def _same(program: Program, one: Place, other: Place) -> bool:
    return program.scope_of(one.file, one.line) == program.scope_of(other.file, other.line)


def _may_have_left(guard: Condition, at: Place, there: int | None) -> bool:
    """Whether somebody who took that exit can stand at line `there` of the same function; None: it left the function."""
    if guard.leaves == "raise":
        return False
    if there is None:
        return True
    if guard.leaves in ("return", "continue"):
        return there <= guard.line or there > at.line
    return there > at.line


def _identity(guard: Condition) -> tuple[str, int, str, str]:
    return guard.file, guard.line, guard.kind, guard.branch


def is_in(program: Program, path: CallPath, guard: Condition) -> bool:
    """Whether the path runs through that branch."""
    return _identity(guard) in {_identity(g) for g in conditions_around(program, path)}
