"""The action of a verdict: the first of those that its rule names that is possible in this job, with the fact behind it."""

from __future__ import annotations

from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.judgement.hosts import hosts_of
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.records import Act, Action, Finding

WHY: dict[Act, str] = {
    "fix code": "another attempt with the same code and input ends the same way",
    "retry": "nothing says that the code or its input caused it",
    "exclude host": "all guilty ranks are on this host, and no other is",
    "wait": "nothing has failed yet",
    "stop": "nothing shows that it will go on, or what a retry would change",
}
ENDED = "nothing had failed when it was ended"


def action_of(cell: CellEvidence, cause: Finding) -> Action | None:
    """None where nothing is to be done."""
    found = next((a for act in cause.actions if (a := _possible(cell, cause, act))), None)
    if found is None or found.do != "retry":
        return found
    # Whatever its class: what has failed in the same way before is no chance.
    again = _failed_before(cell)
    return Action(do="fix code", because=again[0], source=again[1]) if again else found


def _possible(cell: CellEvidence, cause: Finding, act: Act) -> Action | None:
    host = _only_host(cell, cause) if act == "exclude host" else None
    if act == "exclude host" and host is None:
        return None
    fact = cause.evidence[0] if cause.evidence else None
    why = ENDED if act == "wait" and not cell.attached else WHY[act]
    because = f"{why}: {fact.claim}" if fact else why
    return Action(do=act, because=because, host=host, source=fact.source if fact else None)


def _only_host(cell: CellEvidence, cause: Finding) -> str | None:
    """The host of all guilty ranks, of a job that has others as well."""
    hosts = hosts_of(cell)
    guilty = {hosts.get(rank) for rank in cause.guilty_ranks} or {None}
    if cause.where and cause.where.host:
        guilty = {cause.where.host}
    others = {*hosts.values()} - guilty
    return guilty.pop() if len(guilty) == 1 and others else None


def _failed_before(cell: CellEvidence) -> tuple[str, str] | None:
    """An earlier attempt of the launcher's that ended by the exception that ended the last one as well."""
    for rank in cell.ranks:
        last = headline(first_of(rank.exception)) if rank.exception else None
        for number, exception in rank.attempts:
            if last is not None and headline(first_of(exception)) == last:
                source = f"{rank.source}/attempts/{number:02d}/exception.json"
                return f"attempt {number} had ended in the same way: rank {rank.rank} raised {last}", source
    return None
