"""A request of resources that Ray's cluster never placed, by its own lines."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.messages import UnplacedRequest
from nsadiag.evidence.records import Strength

MOST_CITED = 4


def unplaced_request(case: Case) -> Iterator[Draft | Declined]:
    found = case.told.of(UnplacedRequest)
    if not found:
        return
    raised = [r.exception for r in case.cell.ranks if r.exception] + [*case.cell.unnamed]
    if own := next((e for e in map(first_of, raised) if not follows_a_peer(e)), None):
        yield Declined(f"a process raised {own.type}", found[0][1])
        return
    asks = next((fact.asks for fact, _ in found if fact.asks), "")
    yield Draft(
        cls="actor_unschedulable",
        outcome="hung",
        strength=Strength.LIKELY,
        summary=f"Ray has not placed {asks[:160] or 'a request'}: no node offers all of what it asks for under these names, or others hold it.",
        evidence={
            fact.text.splitlines()[0][:200]: source for fact, source in found[:MOST_CITED] if fact.text
        },
        gaps=("what each node offers is not in these files",),
        fix="Compare what is asked for, names included, with what each node offers (ray list nodes --detail): a resource that Ray counts under another name, a node address that no node has, or devices that Ray did not find on a node.",
        next="ray status -v; ray list nodes --detail; ray list placement-groups --detail",
        actions=("fix environment",),
    )


RULE = Rule(
    concludes=("actor_unschedulable",),
    about="collected",
    family="waiting",
    detected="Lines of Ray's, of its autoscaler or of vLLM tell of a request of resources or a placement group that is not placed, and no process raised an error of its own.",
    fix="Ask for what some node offers.",
    actions=("fix environment",),
    check=unplaced_request,
    needs=(),
    confused_with=("rendezvous_mismatch", "external_wait"),
)
