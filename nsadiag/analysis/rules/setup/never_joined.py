"""A process that raised an exception before it had a rank, while the others wait for it to join."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.groups import shown
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import hung_or_crashed
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.analysis.rules.setup.rendezvous_mismatch import joining_ranks
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.user_code import is_user

A_MOMENT_S = 0.5


def _first(cell: CellEvidence) -> Raised:
    return min(cell.unnamed, key=lambda each: each.t_mono_ns)


def _before_any(cell: CellEvidence) -> Draft:
    """A job that failed before any of its processes had a rank."""
    row = _first(cell)
    root = first_of(row)
    # The number from torch.multiprocessing.spawn is the rank if there is a single node.
    number = row.spawned_as
    who = "A process" if number is None else f"Process {number} of torch.multiprocessing.spawn"
    return Draft(
        outcome="crashed",
        strength=Strength.STRONG,
        summary=f"{who} raised {headline(root)} before any process had joined a process group, and the job ended with exit code {cell.launcher_exit_code}.",
        guilty_ranks=() if number is None else (number,),
        where=Where().at(locations.of_exception(row)),
        evidence={f"process {row.pid} ended by {headline(root)}, first of all": "unnamed.jsonl"},
        fix="Fix what the process raised.",
    )


def _began_alike(row: Raised, rank: RankEvidence) -> bool:
    """Whether the outermost user function is the same as the rank's."""
    raised = [(f.file, f.function) for f in row.frames if is_user(f.file)]
    looks = [capture for capture in rank.captures if capture.stacks]
    if not looks or not raised:
        return False
    stack = looks[-1].main_frames
    # For a method py-spy adds the class.
    own = [(f.filename, f.name.rpartition(".")[2]) for f in stack if is_user(f.filename)]
    return bool(own) and own[-1] == raised[0]


def never_joined(case: Case) -> Iterator[Draft | Declined]:
    if case.cell.unnamed and not case.cell.ranks and case.cell.launcher_exit_code and not case.cell.stopped:
        yield _before_any(case.cell)
        return
    joining, absent = joining_ranks(case), tuple(sorted(case.cell.absent))
    if not case.cell.unnamed or not absent or not case.cell.ranks:
        yield Declined(
            f"all processes that raised an exception had a rank, of {len(case.cell.ranks)} ranks",
            "unnamed.jsonl" if case.cell.unnamed else None,
        )
        return
    if len(joining) < len(case.cell.ranks) or not all(j.is_in for j in joining.values()):
        return
    row = _first(case.cell)
    ended = [float(r.end.t_s) for r in case.cell.ranks if r.end.t_s is not None]
    raised_s = (row.t_mono_ns - case.cell.started_mono_ns) / 1e9
    # One that was raised later is a consequence of their end.
    if raised_s > min(ended, default=raised_s) + A_MOMENT_S:
        return
    # If the others were not terminated for it, it may have been a helper process.
    if is_still(case.cell) and not any(_began_alike(row, rank) for rank in case.cell.ranks):
        return
    is_told = len({each.pid for each in case.cell.unnamed}) == len(absent)
    who = f"rank {shown(absent)}" if is_told else f"one of rank {shown(absent)}"
    root, peer = first_of(row), joining[min(joining)].place
    yield Draft(
        outcome=hung_or_crashed(case.cell),
        strength=Strength.STRONG if is_told else Strength.LIKELY,
        summary=f"A process raised {headline(root)} before it had joined; rank {shown(case.cell.everyone(joining))} waits in init_process_group for {who}, which never came.",
        guilty_ranks=absent if is_told else (),
        blocked_ranks=tuple(sorted(joining)),
        where=Where().at(locations.of_exception(row)),
        peers_at=peer,
        evidence={
            f"process {row.pid} ended by {headline(root)}": "unnamed.jsonl",
            **{
                f"rank {r} began init_process_group with world_size={j.size}, and never returned": f"{case.cell.rank(r).source}/blackbox.bin"
                for r, j in sorted(joining.items())[:4]
            },
        },
    )


RULE = Rule(
    name="never_joined",
    concludes=("rank_exception",),
    family="exit",
    detected="A process raised an exception before it had joined, and no rank returned from init_process_group.",
    fix="Fix what the process raised; the others only wait for it.",
    check=never_joined,
    needs=("ends",),
    confused_with=("rendezvous_mismatch", "rank_killed"),
)
