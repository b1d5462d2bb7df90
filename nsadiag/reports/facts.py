"""The lines beneath a verdict's sentence, the same in every format: who, where, what, how far."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.evidence.phrases import DTYPES, call_name, count, plain_path, rate, tensor_names, these
from nsadiag.evidence.records import (
    Because,
    Collective,
    EarlierAttempt,
    PeerWait,
    Place,
    Progress,
    Times,
    ValueOfRanks,
    Verdict,
    Where,
)
from nsadiag.evidence.spans import spans
from nsadiag.printing import one_line
from nsadiag.reports.model import RankReport, RunReport
from nsadiag.reports.words import duration, percent, rank_list

ENDS_SHOWN = 4
RANKS_SHOWN = 64
FEW = 32  # ranks, of which each leaves its evidence here
MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
LOST_FROM_S, SEVERAL = 600.0, 1.5  # from which on what peers lost together says more than how long one waited
FELT_S, WAITS_SHOWN = 1.0, 2  # of waits: from how many seconds on, and of how many ranks


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One labelled line, and the line of source code that belongs to it."""

    label: str
    text: str
    code: str | None = None


def facts_of(run: RunReport) -> list[Fact]:
    """Everything that a verdict says about place and progress, the guilty first."""
    if run.verdict is None:
        return list(_ends(run))
    return [
        *_who(run.verdict),
        *_place(run.verdict),
        *_pace(run.verdict),
        *_waits(run.verdict),
        *_ends(run),
        *([Fact(label="before", text=one_line(run.again))] if run.again else []),
        *_mechanism(run.verdict),
        *_action(run.verdict),
    ]


def headline(verdict: Verdict) -> str:
    """`missing_rank, rank 1 of 2, hang suspected, cause 75 % sure`: the words after the outcome's; no percentage of nothing.

    That it hangs may be proven where its cause is inferred.
    """
    parts = [] if verdict.cls == verdict.outcome else [verdict.cls]
    if verdict.guilty_ranks:
        parts.append(rank_list(verdict.guilty_ranks, verdict.world_size))
    if verdict.certainty:
        parts.append(f"hang {verdict.certainty}")
    of = "cause " if verdict.certainty else ""
    sure = [f"{of}{percent(verdict.confidence)} sure"] if verdict.confidence else []
    return ", ".join([*parts, *sure]) or "nothing to go by"


def place_text(place: Place | Where) -> str:
    """`train.py:41 in train`; a library's line says that it is one."""
    line = f":{place.line}" if place.line else ""
    function = f" in {place.function}" if place.function else ""
    return f"{plain_path(place.file or '')}{line}{function}" + (" (library)" if place.library else "")


def collective_text(collective: Collective) -> str:
    """`all_reduce #17 of default_pg, float32[1024]`."""
    tensors = tensor_names(collective.sizes, collective.dtypes)
    dtypes = [DTYPES.get(dtype, dtype) for dtype in collective.dtypes or ()]
    payload = " ".join(tensors) or " ".join(dict.fromkeys(dtypes))
    call = call_name(collective.op, collective.seq, collective.group)
    return call + (f", {payload}" if payload else "")


def run_again(run: RunReport) -> str:
    """The shell line that runs the job under watch; empty if its command is not known."""
    if not run.command:
        return ""
    # As one types it, where the shell would find the same.
    first = os.path.basename(run.command[0])  # noqa: PTH119
    typed = (first if shutil.which(first) == run.command[0] else run.command[0], *run.command[1:])
    command = shlex.join(typed) if len(typed) > 1 else typed[0]
    ours = run.command[0].rsplit("/", 1)[-1].startswith("nsadiag")
    return command if ours else f"nsadiag run -- {command}"


def judge_again(run: RunReport) -> str:
    """The shell line that judges the evidence anew, from any directory."""
    # By name alone: a cell may be a link to somewhere else.
    paths = (str(path) if str(path) == "-" else os.path.abspath(path) for path in run.evidence)  # noqa: PTH100
    return f"nsadiag analyze {shlex.join(paths)}"


def ranks_to_show(run: RunReport) -> list[RankReport]:
    """The guilty first, then the others in order, as many as one reads."""
    guilty = run.verdict.guilty if run.verdict else frozenset[int]()
    return sorted(run.ranks, key=lambda rank: rank.rank not in guilty)[:RANKS_SHOWN]


def _who(verdict: Verdict) -> Iterator[Fact]:
    guilty_ranks, blocked_ranks = verdict.guilty_ranks, verdict.blocked_ranks
    blocked = rank_list(blocked_ranks, verdict.world_size) if blocked_ranks else ""
    if guilty_ranks:
        guilty = rank_list(guilty_ranks, verdict.world_size)
        if len(guilty_ranks) == len(blocked_ranks) == 1:
            blocked = f"rank {blocked_ranks[0]}"
        yield Fact(label="guilty", text=f"{guilty}, blocking {blocked}" if blocked else guilty)
    elif blocked:
        yield Fact(label="blocked", text=blocked)


def _place(verdict: Verdict) -> Iterator[Fact]:
    where = verdict.where or Where()
    if where.file:
        host = f", on {one_line(where.host)}" if where.host else ""
        yield Fact(label="at", text=place_text(where) + host, code=where.code)
    if verdict.peers_at:
        yield Fact(label="peers at", text=place_text(verdict.peers_at), code=verdict.peers_at.code)
    if verdict.stands_at and not (
        where.file == verdict.stands_at.file and where.line == verdict.stands_at.line
    ):
        yield Fact(label="stands at", text=place_text(verdict.stands_at), code=verdict.stands_at.code)
    if verdict.because:
        yield from _because(verdict.because)
    if where.collective:
        label = "message" if where.collective.op in MESSAGES else "collective"
        yield Fact(label=label, text=collective_text(where.collective))
    if where.parameter:
        yield Fact(label="parameter", text=one_line(where.parameter))
    # A parameter's name begins with its module's, which then says nothing new.
    if where.module and not (where.parameter or "").startswith(where.module):
        yield Fact(label="module", text=one_line(where.module))
    moment = _moment(where)
    if moment:
        yield Fact(label="during", text=moment)


def _because(because: Because) -> Iterator[Fact]:
    """The chain from the line at which the ranks parted to its origin, each link with what is on record."""
    cause = next((n for n, each in enumerate(because.chain) if _is_at(each.at, because)), 0)
    for number, link in enumerate(because.chain):
        table = "; ".join(_by_rank(value) for value in link.values)
        said = f"{place_text(link.at)} ({link.how}): {link.because}{f' ({table})' if table else ''}"
        last = number == len(because.chain) - 1
        origin = f"; origin: {because.origin}" if last and because.origin != "unknown" else ""
        label = "because" if number == cause else "by way of" if number == 0 else ""
        yield Fact(label=label, text=one_line(said + origin), code=link.at.code)


def _is_at(place: Place, because: Because) -> bool:
    return (place.file, place.line) == (because.file, because.line)


def _by_rank(value: ValueOfRanks) -> str:
    """`left = 3 on rank 0, 4 on ranks 1, 2`."""
    alike: dict[str, list[int]] = {}
    for rank, text in value.by_rank.items():
        alike.setdefault(text, []).append(int(rank))
    return f"{value.name} = " + ", ".join(f"{text} on {these(ranks)}" for text, ranks in alike.items())


def _moment(where: Where) -> str:
    step = "" if where.step is None else f"step {where.step}"
    bucket = "" if where.bucket is None else f"bucket {where.bucket}"
    return ", ".join(part for part in (step, where.phase or "", bucket) if part)


def _pace(verdict: Verdict) -> Iterator[Fact]:
    parts = [*_progress(verdict.progress), *_times(verdict.times, verdict.outcome)]
    if parts:
        yield Fact(label="progress", text=", ".join(parts))


def _progress(progress: Progress) -> Iterator[str]:
    if progress.steps_done is not None:
        yield f"{count(progress.steps_done, progress.unit)} done"
    if progress.rate_per_s:
        yield f"{rate(progress.rate_per_s)} {progress.unit}s/s ({duration(1 / progress.rate_per_s)} each)"
    if progress.predicted_s is not None:
        yield f"{duration(progress.predicted_s)} predicted"
    if progress.eta_s is not None:
        yield f"{duration(progress.eta_s)} left"


def _times(times: Times, outcome: str) -> Iterator[str]:
    if times.onset_s is not None:
        yield f"{'stalled' if outcome == 'hung' else 'began'} at {duration(times.onset_s)}"
    if times.verdict_s is not None:
        yield f"verdict at {duration(times.verdict_s)}"


def _waits(verdict: Verdict) -> Iterator[Fact]:
    """The times that peers waited for ranks; of those that nobody noticed, nothing."""
    felt = [wait for wait in verdict.peer_waits if wait.now_s or wait.total_s >= FELT_S][:WAITS_SHOWN]
    if felt:
        yield Fact(
            label="waits", text="; ".join(_wait_text(wait, len(verdict.blocked_ranks)) for wait in felt)
        )


def _wait_text(wait: PeerWait, blocked: int) -> str:
    """`rank 0 has waited 110 s for rank 1 (115 s in all)`; of very many ranks only some have left what tells how long."""
    total = duration(wait.total_s)
    if not wait.now_s:
        return f"peers waited {total} in all for rank {wait.rank}, {duration(wait.longest_s)} at most{_lost(wait)}"
    who = f"ranks {spans(wait.waiters)} have" if len(wait.waiters) > 1 else f"rank {spans(wait.waiters)} has"
    who = "peers have" if len(wait.waiters) < blocked > FEW else who
    now = duration(wait.now_s)
    return (
        f"{who} waited {now} for rank {wait.rank}"
        + (f" ({total} in all)" if total != now else "")
        + _lost(wait)
    )


def _lost(wait: PeerWait) -> str:
    """`, which cost them 3.1 GPU hours`: of a straggler with several peers, whose seconds add up, and of any from some minutes on."""
    adds_up = not wait.now_s and wait.lost_s >= SEVERAL * wait.total_s
    if wait.lost_s < LOST_FROM_S and not adds_up:
        return ""
    of = "GPU" if wait.on_gpus else "rank"
    hours = wait.lost_s / 3600
    return (
        f", which cost them {hours:.1f} {of} hours"
        if hours >= 1
        else f", which cost them {duration(wait.lost_s)} of {of} time"
    )


def earlier_text(attempt: EarlierAttempt, world_size: int) -> str:
    """`attempt 1: crashed, rank_exception, rank 1 of 2, at fail.py:7 (job.log#line 6)`."""
    parts = [attempt.outcome, *([attempt.cls] if attempt.cls != attempt.outcome else [])]
    if attempt.guilty_ranks:
        parts.append(rank_list(attempt.guilty_ranks, world_size))
    if attempt.file:
        parts.append(f"at {attempt.file}{f':{attempt.line}' if attempt.line else ''}")
    source = f" ({attempt.source})" if attempt.source else ""
    return one_line(f"attempt {attempt.number}: {', '.join(parts)}{source}")


def _mechanism(verdict: Verdict) -> Iterator[Fact]:
    """The rule that concluded the class, where the class has several."""
    if verdict.mechanism and verdict.mechanism != verdict.cls:
        yield Fact(label="mechanism", text=one_line(verdict.mechanism))


def _action(verdict: Verdict) -> Iterator[Fact]:
    """`retry: nothing says that the code caused it`; of a host, which."""
    # Where nothing was found out, and nothing is known, there is nothing to do about it either.
    if verdict.action and (verdict.confidence or verdict.guilty_ranks or verdict.outcome != "unknown"):
        host = f" {one_line(verdict.action.host)}" if verdict.action.host else ""
        why = one_line(verdict.action.because).partition(": ")[0]
        yield Fact(label="action", text=f"{verdict.action.do}{host}: {why}")


def _ends(run: RunReport) -> Iterator[Fact]:
    """Ranks that ended alike share a phrase; nothing is said where all simply ended with 0."""
    alike: dict[str, list[RankReport]] = {}
    for rank in run.ranks:
        if rank.end:
            alike.setdefault(_end_words(rank), []).append(rank)
    if not alike or set(alike) == {"exit 0"}:
        return
    world_size = run.world_size or len(run.ranks)
    groups = sorted(alike.items(), key=lambda item: min(r.t_s or 0.0 for r in item[1]))
    phrases = [f"{rank_list([r.rank for r in ranks], world_size)}: {end}" for end, ranks in groups]
    if len(phrases) > ENDS_SHOWN:
        phrases[ENDS_SHOWN:] = [f"{len(phrases) - ENDS_SHOWN} other endings"]
    yield Fact(label="ended", text="; ".join(phrases))


def _end_words(rank: RankReport) -> str:
    """The ending, and who caused it unless the job simply ended by itself."""
    how = f" ({one_line(rank.how)})" if rank.how and rank.how not in ("exited", rank.end) else ""
    return f"stopped by nsadiag ({rank.end}){how}" if rank.by_us else rank.end + how
