"""Processes that the kernel, a scheduler or a cluster ended: for want of memory, at a limit, or for another job."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.facts.texts.signals import killed_by
from nsadiag.analysis.records import CellEvidence, Collected, Declined
from nsadiag.analysis.rules.drafts import all_but
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.messages import ProcessEnd, Rendezvous
from nsadiag.evidence.phrases import capitalized, count, these
from nsadiag.evidence.records import Act, Strength, Where

MOST_CITED = 4
BY = {
    "kernel": "the kernel",
    "slurm": "Slurm",
    "ray": "Ray's memory monitor",
    "kubernetes": "Kubernetes",
    "deepspeed": "DeepSpeed's launcher",
    "accelerate": "Accelerate's launcher",
    "torchrun": "torchrun",
    "spawn": "the process that started it",
    "shell": "the shell",
    "lightning": "Lightning's launcher",
    "mpirun": "mpirun",
    "composer": "Composer's launcher",
    "vllm": "vLLM's executor",
}
MEMORY_FIX = {
    "ray": "The node's memory ran out, and Ray ended the process that it chose: give tasks and actors more (memory=...), run fewer on a node, or keep less in each; the threshold is RAY_memory_usage_threshold.",
    "slurm": "The step's memory ran out: ask for more (--mem, --mem-per-cpu, --mem-per-gpu), use fewer loader workers, or keep less in memory.",
    "kubernetes": "The container reached its limit of memory: raise resources.limits.memory, use fewer loader workers, or keep less in memory; what lies in /dev/shm counts as well.",
}
MEMORY = "The machine, or the job's cgroup, ran out of memory: load less at once, use fewer workers, or raise the limit."
CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
BY_SIGNAL_ALONE = (
    "that it was this rank follows from SIGKILL alone: no line has its pid and the memory together"
)
OTHER: dict[str, tuple[str, tuple[Act, ...], str]] = {
    "time limit": ("reached its time limit", ("unknown",), "Ask for more time, or save checkpoints and continue from the last one."),
    "preemption": ("was preempted for another job", ("retry",), "Start it again from its last checkpoint."),
    "node failure": ("lost its node", ("exclude host", "retry"), "Start it again without that node."),
    "eviction": ("was evicted from its node", ("retry",), "See what the node ran short of (kubectl describe pod), and start it again."),
}  # fmt: skip


def process_end(case: Case) -> Iterator[Draft | Declined]:
    told = case.told
    ends = told.of(ProcessEnd)
    if not ends:
        return
    memory = [(end, source) for end, source in ends if end.why == "memory"]
    if memory:
        yield _of_memory(case, told, memory)
    other = [(end, source) for end, source in ends if end.why in OTHER]
    if other and not _started_again(told):
        yield _of_a_limit(told, other)
    # A watchdog, CUDA or an assertion aborts the process that it has spoken of.
    killed = [
        (end, source)
        for end, source in ends
        if end.why == "unknown" and killed_by(end) not in ("", "SIGABRT")
    ]
    # Whose stacks were taken stood still before it was ended.
    hung = bool(case.thread_states) or not case.calls.empty
    if killed and first_break(case.cell) is None and not case.cell.unnamed and not hung:
        yield _of_a_signal(case, told, killed)
    known = ", ".join(sorted({BY[end.by] for end, _ in ends}))
    yield Declined(f"{known} gave no reason for the end of {count(len(ends), 'process')}", ends[0][1])


def _of_a_signal(case: Case, told: Collected, ends: list[tuple[ProcessEnd, str]]) -> Draft:
    """Somebody sent it, and nothing says who."""
    # DeepSpeed's launcher names the last process that it ended itself.
    own = [(end, source) for end, source in ends if end.by != "deepspeed"]
    ranks = tuple(sorted({r for end, _ in own[:1] if (r := told.rank_of(end)) is not None}))
    end = (own or ends)[0][0]
    who = these(ranks) if ranks else f"process {end.pid}" if own and end.pid else "a process"
    by = "Ray" if end.by == "ray" else BY[end.by]
    crashed = killed_by(end) in CRASHES
    return Draft(
        cls="rank_killed",
        outcome="crashed",
        strength=Strength.LIKELY,
        summary=f"{capitalized(who)} was ended by {killed_by(end)}, as {by} says; {'native code of its own crashed' if crashed else 'who sent it no line tells'}.",
        guilty_ranks=ranks,
        blocked_ranks=all_but(case.cell, ranks) if ranks else (),
        where=Where(host=end.host or None),
        evidence={each.text.splitlines()[0][:200]: source for each, source in ends[:MOST_CITED] if each.text},
        gaps=() if ranks else ("no line tells which rank that was",),
        fix="Find what ended it: the kernel for want of memory (dmesg), a scheduler's limit, or native code that crashed.",
    )


def _of_memory(case: Case, told: Collected, ends: list[tuple[ProcessEnd, str]]) -> Draft:
    cell = case.cell
    named = tuple(sorted({r for end, _ in ends if (r := told.rank_of(end)) is not None}))
    ranks = named or _ended_by_sigkill(cell)
    # The line with a process or host says most.
    best, _ = max(
        ends,
        key=lambda each: (told.rank_of(each[0]) is not None, each[0].pid is not None, bool(each[0].host)),
    )
    many = max(end.count for end, _ in ends)
    who = (
        these(ranks)
        if ranks
        else f"process {best.pid}"
        if best.pid
        else f"{many} processes"
        if many > 1
        else "a process"
    )
    host = next((end.host for end, _ in ends if end.host), "")
    was = "were" if (len(ranks) > 1 or (not ranks and not best.pid and many > 1)) else "was"
    return Draft(
        cls="host_oom",
        outcome="crashed",
        strength=Strength.CONCLUSIVE if named else Strength.LIKELY,
        summary=f"{capitalized(who)} {was} ended for want of host memory{f' on {host}' if host else ''}, as {BY[best.by]} says.",
        guilty_ranks=ranks,
        blocked_ranks=all_but(cell, ranks) if ranks else (),
        where=Where(host=host or None),
        evidence={end.text.splitlines()[0][:200]: source for end, source in ends[:MOST_CITED] if end.text},
        gaps=() if named else (BY_SIGNAL_ALONE,) if ranks else ("no line tells which rank that was",),
        fix=MEMORY_FIX.get(best.by, MEMORY),
        actions=("fix environment",),
    )


def _started_again(told: Collected) -> bool:
    """Whether a later start counts more processes than there are: what ended the one before is not what failed."""
    return any(met.joined > met.expected for met, _ in told.of(Rendezvous))


def _ended_by_sigkill(cell: CellEvidence) -> tuple[int, ...]:
    """Ranks that a launcher saw end by the signal which ends a process for want of memory: it is theirs, whatever pid a container gave them."""
    return tuple(rank.rank for rank in cell.ranks if rank.end.signal == signal.SIGKILL)


def _of_a_limit(told: Collected, ends: list[tuple[ProcessEnd, str]]) -> Draft:
    end, _ = ends[0]
    did, actions, fix = OTHER[end.why]
    ranks = tuple(sorted({r for each, _ in ends if (r := told.rank_of(each)) is not None}))
    return Draft(
        cls="rank_killed",
        outcome="crashed",
        strength=Strength.LIKELY,
        summary=f"{capitalized(these(ranks)) if ranks else 'The job'} {did}, as {BY[end.by]} says.",
        guilty_ranks=ranks if end.why == "node failure" else (),
        where=Where(host=end.host or None),
        evidence={each.text.splitlines()[0][:200]: source for each, source in ends[:MOST_CITED] if each.text},
        fix=fix,
        actions=actions,
    )


RULE = Rule(
    concludes=("host_oom", "rank_killed"),
    about="collected",
    family="exit",
    detected="A log of the kernel, Slurm, Ray or Kubernetes says that a process was ended for want of memory, or at a time limit, by preemption, or with its node. The rank is named where a line tells it of that process.",
    fix=MEMORY,
    actions=("unknown",),
    check=process_end,
    confused_with=("rank_killed", "rank_exception", "gpu_oom"),
)
