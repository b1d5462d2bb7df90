"""The action of a verdict: the first of those that its rule names that is possible in this job, with the fact behind it."""

from __future__ import annotations

from nsadiag.analysis.facts.exceptions import first_of, headline, says_assert
from nsadiag.analysis.facts.texts.error_causes import cause_in
from nsadiag.analysis.judgement.hosts import hosts_of
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.recorder import OF_WATCHDOG
from nsadiag.evidence.records import Act, Action, Finding

WHY: dict[Act, str] = {
    "fix code": "another attempt with the same code and input ends the same way",
    "fix environment": "the cause lies in what the job runs on, and another attempt meets it again",
    "retry": "nothing says that the code or its input caused it",
    "exclude host": "all guilty ranks are on this host, and no other is",
    "wait": "nothing has failed yet",
    "stop": "nothing shows that it will go on, or what a retry would change",
    "unknown": "this evidence does not tell whether another attempt would end the same way",
}
ENDED = "nothing had failed when it was ended"
DEVICE_FAILED = "its hardware has failed, and what runs there next fails as well"
# Classes that follow from the code alone, whoever collected the evidence.
OF_CODE = frozenset({
    "collective_order_mismatch", "collective_args_mismatch", "rank_conditional_collective", "data_divergent_control_flow",
    "divergent_module_execution", "grad_sync_mismatch", "model_structure_mismatch", "p2p_mismatch", "process_group_mismatch",
    "ddp_unused_parameter", "ddp_ready_twice", "ddp_static_graph_violation", "gpu_oom",
})  # fmt: skip
# Python's own errors about what a line does; others may come from whatever the line called.
ERRORS_OF_CODE = frozenset({
    "TypeError", "ValueError", "KeyError", "IndexError", "AttributeError", "NameError", "UnboundLocalError", "AssertionError",
    "ZeroDivisionError", "NotImplementedError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError",
    "RecursionError", "UnicodeDecodeError", "JSONDecodeError", "StopIteration",
})  # fmt: skip


def action_of(cell: CellEvidence, cause: Finding) -> Action | None:
    """None where nothing is to be done."""
    found = next((a for act in cause.actions if (a := _possible(cell, cause, act))), None)
    if found is None and cause.actions and cell.collected:
        return Action(do="unknown", because=WHY["unknown"])
    if found is None or found.do != "retry":
        return found
    # Whatever its class: what has failed in the same way before is no chance.
    again = _failed_before(cell)
    return Action(do="fix code", because=again[0], source=again[1]) if again else found


def _possible(cell: CellEvidence, cause: Finding, act: Act) -> Action | None:
    host = _only_host(cell, cause) if act == "exclude host" else None
    fact = cause.evidence[0] if cause.evidence else None
    why = ENDED if act == "wait" and not cell.attached else WHY[act]
    if act == "exclude host" and host is None:
        # Who started the job knows where its ranks ran, though the evidence does not say it.
        if cell.collected is None or cause.actions[0] != act or cause.outcome != "crashed":
            return None
        why = DEVICE_FAILED
    if not _is_supported(cell, cause, act):
        return None
    because = f"{why}: {fact.claim}" if fact else why
    return Action(do=act, because=because, host=host, source=fact.source if fact else None)


def _is_supported(cell: CellEvidence, cause: Finding, act: Act) -> bool:
    """Whether the evidence supports it: of a job that nsadiag recorded its rule decides."""
    if cell.collected is None:
        return act != "unknown"
    if act == "fix code":
        return cause.cls in OF_CODE or any(map(_is_of_code, _raised(cell, cause)))
    # Whatever a log tells of is over.
    return act not in ("stop", "wait") or cause.outcome == "unknown" or _may_still_run(cell)


def _raised(cell: CellEvidence, cause: Finding) -> list[Cause]:
    """The exceptions that the finding may be about."""
    own = [rank.exception for rank in cell.ranks if rank.exception and rank.rank in cause.guilty_ranks]
    return [first_of(each) for each in (own or cell.unnamed)]


def _is_of_code(exception: Cause) -> bool:
    """Whether a line raised it for what the code does or gets: another attempt raises it again."""
    if row := cause_in(exception):
        return row.actions[0] == "fix code"
    if exception.type.rpartition(".")[2] in ERRORS_OF_CODE or says_assert(exception):
        return True
    return bool(exception.frames) and not _is_of_a_device(exception)


def _is_of_a_device(exception: Cause) -> bool:
    return any(word in exception.message for word in ("CUDA", "NCCL", "HIP", "gloo", "c10d", "store"))


def _may_still_run(cell: CellEvidence) -> bool:
    """Whether somebody took its stacks or dumps, which a job that is over has none of."""
    captures = [capture for rank in cell.ranks for capture in rank.captures]
    return any(c.stacks for c in captures) or any(
        c.flight_recorder.get("version") not in (None, OF_WATCHDOG) for c in captures
    )


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
