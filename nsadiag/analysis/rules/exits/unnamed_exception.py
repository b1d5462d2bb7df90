"""An exception in a log of several ranks, of which no line tells the rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import (
    LOST_WORKER,
    first_of,
    follows_a_peer,
    headline,
    is_same,
    place_of,
)
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.exits.exception_advice import (
    NO_ORDER,
    OF_A_WORKER,
    actions_of,
    class_of,
    fix_of,
    next_of,
)
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import Cause, Raised, TracebackFrame
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Strength

BY_RANK = "torchrun --log-dir logs --redirects 3 --tee 3 <the same script>: each line then names its rank"
NO_LINE = "The message says what failed; no line of the job's own code is in these files."
LOADER = "torch/utils/data/dataloader.py"
NO_RANK = "no line of the log tells which rank raised it"
ANOTHER = "; another process raised another error, and nothing tells which came first"
LINE = "Fix the line shown; errors of other ranks that follow from it go away with it."


def unnamed_exception(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    if not cell.unnamed:
        return
    first = _first(cell.unnamed)
    root = first_of(first)
    named = next(
        (each.rank for each in breaks(cell) if each.kind == "exception" and not each.follows_a_peer), None
    )
    if named is not None:
        yield Declined(f"rank {named.rank} raised an exception of its own", named.source)
        return
    if follows_a_peer(root):
        yield Declined(f"what a process raised tells of another that is gone: {headline(root)}", first.source)
        return
    ranks, why = _whose(cell)
    tied = _unordered(cell.unnamed, first)
    lost = LOST_WORKER.search(root.message)
    raised, place = headline(root).rstrip("."), place_of(root) or place_of(first)
    if lost:
        # Torch raises it wherever the process is when it hears of it: only that of the loader's own call is of use.
        raised = f"{root.type}: {lost[0]}"
        place = place if any(LOADER in frame.file for frame in root.frames) else None
    # Of a job that no line says to be of several ranks, that is no news.
    why = f"; {why}" if cell.world_size else ""
    yield Draft(
        cls="dataloader_worker_fault" if lost else class_of(root),
        outcome="crashed",
        strength=Strength.GUESS if tied else Strength.LIKELY,
        summary=f"A process raised {raised}{why}{ANOTHER if tied else ''}.",
        guilty_ranks=ranks,
        blocked_ranks=tuple(r.rank for r in cell.ranks if r.rank not in ranks) if ranks else (),
        at=place,
        evidence={
            f"a process raised {raised}": first.source,
            **{f"a process raised {headline(first_of(each))}": each.source for each in tied[:3]},
        },
        gaps=(NO_RANK, *([NO_ORDER] if tied else [])),
        fix=fix_of(root, OF_A_WORKER if lost else LINE if place else NO_LINE),
        next=next_of(root) or (BY_RANK if case.told.started_by == "torchrun" else None),
        actions=actions_of(root),
    )


def _first(unnamed: Sequence[Raised]) -> Raised:
    """The one to judge: what a loader's worker died of is told by the process that lost it, after the worker's own words."""
    own = [each for each in unnamed if not follows_a_peer(first_of(each))]
    if all(each.t_wall_ns for each in own):
        own.sort(key=lambda each: each.t_wall_ns)
    lost = [each for each in own if LOST_WORKER.search(first_of(each).message)]
    return next(iter(lost or own), unnamed[0])


def _unordered(unnamed: Sequence[Raised], first: Raised) -> list[Raised]:
    """Other errors of their own, in other logs, where nothing tells which came first: not all of them have a time."""
    own = [each for each in unnamed if not follows_a_peer(first_of(each))]
    log = first.source.partition("#")[0]
    others = [each for each in own if each.source.partition("#")[0] != log]
    others = [] if all(each.t_wall_ns for each in own) else others
    return [each for each in others if headline(first_of(each)) != headline(first_of(first))]


def _whose(cell: CellEvidence) -> tuple[tuple[int, ...], str]:
    """The rank that it can only be, and why; nobody where it may be several."""
    failed = tuple(r.rank for r in cell.ranks if (r.end.exit_code or 0) > 0 and not r.exception)
    raised = _processes(cell.unnamed)
    if failed and len(failed) == raised:
        one = raised == 1
        return (
            failed,
            f"{these(failed)} {'is the only one' if one else 'are the ones'} that ended with an exit code of {'its' if one else 'their'} own",
        )
    silent = sorted(cell.absent)
    if len(silent) == 1 and len(cell.ranks) > 1 and raised == 1:
        return (silent[0],), f"rank {silent[0]} is the only one of which no other line is there"
    left = f", and of {these(silent)} no other line is there" if silent else ""
    return (), f"the log does not tell which rank it was{left}"


def _processes(raised: Sequence[Raised]) -> int:
    """The number of processes that raised errors of their own: what one logs and raises again has fewer frames the first time."""
    own = [first_of(each) for each in raised if not follows_a_peer(first_of(each))]
    return sum(not any(_is_part(one, whole) for whole in own) for one in own)


def _is_part(one: Cause, whole: Cause) -> bool:
    inner = whole.frames[len(whole.frames) - len(one.frames) :]
    return (
        len(one.frames) < len(whole.frames) and is_same(one, whole) and _places(inner) == _places(one.frames)
    )


def _places(frames: Sequence[TracebackFrame]) -> list[tuple[str, int]]:
    return [(frame.file, frame.line) for frame in frames]


RULE = Rule(
    concludes=("rank_exception", "gpu_oom", "dataloader_worker_fault"),
    about="collected",
    family="exit",
    detected="A log in which several ranks write has a traceback without a rank. It is given to the one rank that ended with an exit code of its own, or to the only one of which nothing else is there; else to nobody.",
    fix="Fix the line shown.",
    check=unnamed_exception,
    explained_by=("rank_exception", "stated_cause", "transport_warnings"),
    confused_with=("missing_rank", "rank_killed"),
)
