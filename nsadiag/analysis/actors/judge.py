"""The verdict on a job of Ray's: from the wait-for graph, whoever holds all others up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nsadiag.analysis.actors.graph import WaitGraph, graph_of
from nsadiag.analysis.actors.job import ActorJob
from nsadiag.analysis.actors.roots import Root, root_of
from nsadiag.analysis.actors.stands import PEERS, Stand, Stands, stands_of
from nsadiag.analysis.actors.words import DOING, begun, on_hosts, several, standing, waits_for
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.documents.actors import ActorWaits, RayJob
from nsadiag.evidence.documents.types import Gaps, read_value
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.records import (
    Action,
    Certainty,
    Evidence,
    Outcome,
    Progress,
    Strength,
    Times,
    Verdict,
    Where,
)
from nsadiag.evidence.user_code import counted, valid_roots

DOCUMENT = "ray.json"
# The silence after which a wait for the world outside is suspected: of a call that has returned before, so many times as
# long as it ever took.
PATIENCE_S, TIMES_LONGER, AT_LEAST_S = 120.0, 10.0, 30.0


def is_actors(path: Path) -> bool:
    """Whether the run directory is that of a job of Ray's."""
    return (path / DOCUMENT).is_file()


def judge_actors(cell: CellEvidence) -> Verdict:
    """The verdict on what `nsadiag attach ray:JOB` left in the directory of `cell`."""
    gaps: Gaps = []
    job = job_of(cell, gaps)
    with counted(valid_roots(job.ray.user_code)):
        stands = stands_of(job)
        graph = graph_of(job, stands)
        verdict = _judged(job, stands, graph)
    blind = [f"{job.name(number)}: no stack of it could be had" for number in stands.blind]
    unread = [gap for waits in job.waits.values() for gap in waits.gaps]
    missing = (*map(str, gaps), *job.ray.gaps, *blind, *dict.fromkeys(unread))
    return dataclasses.replace(verdict, gaps=(*verdict.gaps, *missing))


def job_of(cell: CellEvidence, gaps: Gaps | None = None) -> ActorJob:
    """The documents of the run directory of `cell`; what does not fit goes to `gaps`."""
    ray = read_value(RayJob, cell.path / DOCUMENT, gaps) or RayJob(id="")
    run = RunDir(path=cell.path)
    found: list[dict[int, ActorWaits]] = []
    for capture in (1, 2):
        rows = {p.number: run.rank(p.number).capture(capture).path / "waits.json" for p in ray.processes}
        found.append({n: w for n, path in rows.items() if (w := read_value(ActorWaits, path, gaps))})
    return ActorJob(cell=cell, ray=ray, waited=found[0], waits=found[1])


def _judged(job: ActorJob, stands: Stands, graph: WaitGraph) -> Verdict:
    if root := root_of(job, graph, graph.stuck):
        return _hung(job, graph, root, "proven")
    working = [stand for stand in stands.rows if stand.works]
    if job.moved or working:
        return _moving(job, working)
    # A wait that is tried again and again, as if it had no limit.
    patient = dataclasses.replace(
        graph, free=graph.free - {s.key for s in stands.rows if s.awaits and s.limit}
    )
    if root := root_of(job, patient, patient.stuck):
        return _hung(job, patient, root, "suspected")
    return _open(job, stands, patient)


def _open(job: ActorJob, stands: Stands, graph: WaitGraph) -> Verdict:
    """Nothing moves, and something could by itself."""
    sleeping = [s for s in stands.rows if s.doing == "sleep"]
    outside = [s for s in stands.rows if s.key in graph.free and s.doing != "sleep" and not s.awaits]
    if sleeping:
        return _healthy(job, f"{standing(job, sleeping[0])}, in a sleep that ends by itself", Strength.LIKELY)
    late = [stand for stand in outside if _age(job, stand) > _patience(job, stand)]
    if late:
        held = max(late, key=lambda s: sum(s.key in graph.reached(key) for key in graph.nodes))
        return _hung(job, graph, root_outside(job, held), "suspected")
    starting = [e for e in graph.edges if graph.nodes[e.target].state == "unknown"]
    if not outside and not starting and (root := root_of(job, graph, frozenset(graph.nodes))):
        return _hung(job, graph, root, "suspected")
    words = (
        f"{standing(job, outside[0])} and waits for {DOING.get(outside[0].doing, 'something')}"
        if outside
        else f"{job.name(graph.nodes[starting[0].waiter].number)} {waits_for(job, graph, starting[0])}"
        if starting
        else "no call waits for another one"
    )
    open_ = bool(outside or starting)
    return _verdict(
        job, outcome="incomplete" if open_ else "unknown", cls="incomplete" if open_ else "unknown",
        strength=Strength.GUESS, summary=f"Nothing moved in {job.ray.watched_s:.0f} s, and nothing shows that it never will: {words}.",
    )  # fmt: skip


def root_outside(job: ActorJob, stand: Stand) -> Root:
    """The root where a call waits for the world, or runs and gets nowhere."""
    what = DOING.get(stand.doing, "something that its stack does not show")
    age = _age(job, stand)
    longest = job.longest_s(stand.task) if stand.task else None
    before = f"; its longest call before took {longest:.1f} s" if longest is not None else ""
    return Root(
        cls="external_wait", guilty=(stand.number,), keys=(stand.key,), stand=stand,
        says=f"{standing(job, stand)} and has waited for {age:.0f} s for {what}{before}",
    )  # fmt: skip


def _age(job: ActorJob, stand: Stand) -> float:
    return job.age_s(stand.task) if stand.task else job.ray.watched_s


def _patience(job: ActorJob, stand: Stand) -> float:
    longest = job.longest_s(stand.task) if stand.task else None
    return PATIENCE_S if longest is None else max(AT_LEAST_S, TIMES_LONGER * longest)


# -- verdicts ------------------------------------------------------------------------------------


def _hung(job: ActorJob, graph: WaitGraph, root: Root, certainty: Certainty) -> Verdict:
    waiting = sorted(
        {graph.nodes[key].number for key in graph.nodes if set(root.keys) & graph.reached(key)}
        - {*root.guilty, -1}
    )
    others = [job.name(number) for number in waiting if number not in root.named]
    more = f" {begun(several(others))} wait{'s' if len(others) == 1 else ''} for that." if others else ""
    waiter = (
        root.waiter if root.waiter and root.waiter.place else graph.nearest_waiter(root.keys, root.guilty)
    )
    stand = root.stand
    shown = [stand, waiter] if waiter is not stand else [stand]
    where = Where(host=_host(job, stand.number)).at(stand.place) if stand and stand.place else None
    evidence = [Evidence(claim=standing(job, each), source=each.source) for each in shown if each]
    evidence += [Evidence(claim=claim, source=DOCUMENT) for claim in root.facts]
    if certainty == "proven":
        evidence.append(Evidence(claim=f"nobody but {several([job.name(n) for n in sorted({*root.guilty, *waiting})])} could end these waits, and each of them waits or is gone", source=DOCUMENT))  # fmt: skip
    return _verdict(
        job, outcome="hung", cls=root.cls, strength=Strength.STRONG if certainty == "proven" else Strength.WEAK,
        summary=f"{begun(root.says)}.{more}{on_hosts(job, root.guilty)}", guilty=root.guilty, blocked=tuple(waiting), where=where,
        peers_at=waiter.place if waiter else None, evidence=tuple(evidence), certainty=certainty, fix=root.fix,
    )  # fmt: skip


def _host(job: ActorJob, number: int) -> str | None:
    return next(iter(job.hosts_of([number])), None)


def _moving(job: ActorJob, working: list[Stand]) -> Verdict:
    if job.moved:
        names = [task.name for task in job.moved]
        count = f"{len(names)} call{'s' if len(names) > 1 else ''}"
        return _healthy(
            job,
            f"{count} began or ended in {job.ray.watched_s:.0f} s ({several(sorted(set(names)))})",
            Strength.LIKELY,
        )
    busy = max(working, key=lambda s: s.cpu_share + s.beside_share)
    share = busy.cpu_share + busy.beside_share
    used = f"used {share:.1f} CPUs" if share > 0.05 else "went on to other lines"
    return _healthy(job, f"{standing(job, busy)} and {used}", Strength.LIKELY)


def _healthy(job: ActorJob, says: str, strength: Strength) -> Verdict:
    return _verdict(
        job, outcome="healthy", cls="healthy", strength=strength, summary=f"The job progresses: {says}."
    )


def _verdict(
    job: ActorJob, *, outcome: Outcome, cls: str, strength: Strength, summary: str, guilty: tuple[int, ...] = (),
    blocked: tuple[int, ...] = (), where: Where | None = None, peers_at: object = None,
    evidence: tuple[Evidence, ...] = (), certainty: Certainty | None = None, fix: str | None = None,
) -> Verdict:  # fmt: skip
    action = Action(do="fix code", because="the calls wait for each other in the same way whenever they are made") if certainty == "proven" else (
        Action(do="stop", because="nothing moved while it was watched") if outcome == "hung" else None)  # fmt: skip
    return Verdict(
        outcome=outcome, cls=cls, confidence=strength.value, summary=summary, guilty_ranks=guilty,
        blocked_ranks=tuple(n for n in blocked if n not in guilty), world_size=job.world_size, where=where,
        peers_at=peers_at, progress=Progress(), evidence=evidence, rejected=(), gaps=(), fix=fix, next=None,  # type: ignore[arg-type]
        times=Times(), certainty=certainty, action=action,
    )  # fmt: skip


__all__ = ["PEERS", "is_actors", "judge_actors"]
