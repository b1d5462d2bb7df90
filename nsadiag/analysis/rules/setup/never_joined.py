"""A process that raised an exception before it had a rank, while the others wait for it to join."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import named, recorded
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.analysis.rules.setup.rendezvous_mismatch import joining_ranks
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.phrases import count, these, waits_wait
from nsadiag.evidence.records import Strength
from nsadiag.evidence.user_code import is_user

A_MOMENT_S = 0.5


def never_joined(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    if cell.collected is not None:
        return  # a log without a rank's name before a line does not say that it had none
    if cell.unnamed and not cell.ranks and cell.launcher_exit_code and not cell.stopped:
        yield _before_any(cell)
        return
    joining, absent = joining_ranks(case), tuple(sorted(cell.absent))
    if not cell.unnamed or not absent or not cell.ranks:
        yield Declined(
            f"{len(cell.unnamed) or 'none'} of the job's processes raised an exception before it had a rank, and {count(len(absent), 'rank')} left nothing",
            "unnamed.jsonl" if cell.unnamed else None,
        )
        return
    row = _first(cell)
    if len(joining) < len(cell.ranks) or not all(j.is_in for j in joining.values()) or _came_later(cell, row):
        return
    # If the others were not terminated for it, it may have been a helper process.
    if is_still(cell) and not any(_began_alike(row, rank) for rank in cell.ranks):
        return
    is_known = len({each.pid for each in cell.unnamed}) == len(absent)
    whom = these(absent) if is_known else f"one of {these(absent)}"
    waiting = named(cell, joining)
    raised = headline(first_of(row))
    began = {r: f"began init_process_group with world_size={j.size}" for r, j in sorted(joining.items())[:4]}
    yield Draft(
        strength=Strength.STRONG if is_known else Strength.LIKELY,
        summary=f"A process raised {raised} before it had joined; {waiting} {waits_wait(cell.everyone(joining))} in init_process_group for {whom}, which never came.",
        guilty_ranks=absent if is_known else (),
        blocked_ranks=tuple(sorted(joining)),
        at=locations.of_exception(row),
        peers_at=joining[min(joining)].place,
        evidence={
            f"process {row.pid} ended by {raised}": "unnamed.jsonl",
            **recorded(cell, {r: f"{did}, and never returned" for r, did in began.items()}),
        },
    )


def _first(cell: CellEvidence) -> Raised:
    return min(cell.unnamed, key=lambda each: each.t_mono_ns)


def _before_any(cell: CellEvidence) -> Draft:
    """A job that failed before any of its processes had a rank."""
    row = _first(cell)
    raised = headline(first_of(row))
    # The number from torch.multiprocessing.spawn is the rank if there is a single node.
    number = row.spawned_as
    who = "A process" if number is None else f"Process {number} of torch.multiprocessing.spawn"
    return Draft(
        outcome="crashed",
        strength=Strength.STRONG,
        summary=f"{who} raised {raised} before any process had joined a process group, and the job ended with exit code {cell.launcher_exit_code}.",
        guilty_ranks=() if number is None else (number,),
        at=locations.of_exception(row),
        evidence={f"process {row.pid} ended by {raised}, first of all": "unnamed.jsonl"},
        fix="Fix what the process raised.",
    )


def _came_later(cell: CellEvidence, row: Raised) -> bool:
    """Whether it was raised after a rank had ended, and so is a consequence of that."""
    ended = [rank.end.t_s for rank in cell.ranks if rank.end.t_s is not None]
    raised_s = (row.t_mono_ns - cell.started_mono_ns) / 1e9
    return raised_s > min(ended, default=raised_s) + A_MOMENT_S


def _began_alike(row: Raised, rank: RankEvidence) -> bool:
    """Whether the outermost user function is the same as the rank's."""
    raised = [(f.file, f.function) for f in row.frames if is_user(f.file)]
    stacks = [capture.main_frames for capture in rank.captures if capture.stacks]
    # For a method py-spy adds the class.
    own = [
        (f.filename, f.name.rpartition(".")[2]) for f in (stacks[-1] if stacks else ()) if is_user(f.filename)
    ]
    return bool(own and raised) and own[-1] == raised[0]


RULE = Rule(
    concludes=("rank_exception",),
    family="exit",
    detected="A process raised an exception before it had joined, and no rank returned from init_process_group.",
    fix="Fix what the process raised; the others only wait for it.",
    check=never_joined,
    needs=("ends",),
    confused_with=("rendezvous_mismatch", "rank_killed"),
)
