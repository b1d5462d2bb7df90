"""DDP: parameters that took no part in the last forward, so that a bucket never filled."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.breaks import first_break
from nsadiag.analysis.load import CellEvidence, RankEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where

UNFINISHED = "Expected to have finished reduction in the prior iteration"
INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
NAMES = re.compile(r"Parameters which did not receive grad for rank \d+: ([\w., ]+)")


def _unused(rank: RankEvidence) -> list[str]:
    """By name: DDP prints indices, and names only at TORCH_DISTRIBUTED_DEBUG=INFO or higher."""
    message = (rank.exception or {}).get("message", "")
    named = NAMES.search(message)
    if named:
        return [n.strip() for n in named[1].split(",")]
    indices = INDICES.search(message)
    if not indices or not rank.ddp:
        return []
    parameters = rank.ddp[-1]["parameters"]
    return [parameters[int(i)]["name"] for i in indices[1].split() if int(i) < len(parameters)]


def ddp_unused_parameter(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    first = first_break(cell)
    if (
        first is None
        or first.kind != "exception"
        or UNFINISHED not in (first.rank.exception or {}).get("message", "")
    ):
        return
    saying = [r for r in cell.ranks if r.exception and UNFINISHED in r.exception["message"]]
    guilty = tuple(r.rank for r in saying)
    unused = _unused(first.rank)
    shown = ", ".join(unused[:4]) + (f" and {len(unused) - 4} more" if len(unused) > 4 else "")
    ranks = "every rank" if len(guilty) == len(cell.ranks) else f"rank {', '.join(map(str, guilty))}"
    source = f"{first.rank.source}/exception.json"
    evidence = [Evidence(claim=f"DDP: {UNFINISHED}", source=source)]
    if unused:
        evidence.append(
            Evidence(claim=f"no gradient arrived for {shown}", source=f"{first.rank.source}/ddp.json")
        )
    one_sided = len(guilty) < len(cell.ranks)
    yield Finding(
        detector="ddp_unused_parameter",
        cls="ddp_unused_parameter",
        outcome="crashed",
        confidence=0.95,
        summary=f"On {ranks}, {shown or 'some parameters'} took no part in the forward before, so DDP never finished reducing.",
        guilty_ranks=guilty,
        blocked_ranks=tuple(r.rank for r in cell.ranks if r.rank not in guilty),
        where=Where(
            parameter=unused[0] if unused else None,
            module=unused[0].rpartition(".")[0] if unused else None,
            phase="forward",
            step=first.rank.end.get("steps"),
        ).at(places.of_exception(first.rank.exception or {})),
        evidence=tuple(evidence),
        rejected=(
            Rejected(cls="rank_exception", because="the exception is DDP's own, about the step before"),
        ),
        fix=(
            "A branch on this rank's own data skips the module: let every rank run it (multiply by zero), or use find_unused_parameters=True."
            if one_sided
            else "Remove the unused parameters, freeze them with requires_grad_(False), or use find_unused_parameters=True."
        ),
    )
