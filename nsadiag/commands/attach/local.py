"""`nsadiag attach`: a job that is already stuck, and was not started by us."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.agent.attaching import attach, finding
from nsadiag.agent.attaching.attached_watch import AttachedJob, AttachedWatch, Told
from nsadiag.agent.watching.state import RankState
from nsadiag.commands import output
from nsadiag.commands.run import RunResult, answer_first, exit_code, judge_and_report, load_analysis
from nsadiag.errors import EXIT_HEALTHY, UsageError
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.printing import note


@dataclass(frozen=True, kw_only=True)
class AttachRequest:
    """A parsed `nsadiag attach` line."""

    targets: list[str]
    run: Path | None = None
    out: Path | None = None
    force: bool = False
    follow: bool = False
    everyone: bool = False  # all distributed jobs of this user, here
    nodes: int = 1  # that run this command, and share `out`
    roles: tuple[str, ...] = ()  # NAME=PID


def attach_once(request: AttachRequest) -> RunResult:
    """Looks at the job and judges it; with `follow` until it has ended, or Ctrl-C. Raises NsadiagError before anything was written."""
    if len(request.targets) == 1 and request.targets[0].startswith("slurm:") and not request.run:
        from nsadiag.commands.attach.slurm import attach_slurm

        if request.follow:
            raise UsageError("--follow of a Slurm job", "on one of its nodes: nsadiag attach --follow PID")
        return attach_slurm(request.targets[0].removeprefix("slurm:"), out=request.out, force=request.force)
    if len(request.targets) == 1 and request.targets[0].startswith("ray:") and not request.run:
        from nsadiag.commands.attach.ray import attach_ray

        if request.follow:
            raise UsageError("--follow of a job of Ray's", "on the actor's node: nsadiag attach --follow PID")
        return attach_ray(request.targets[0].removeprefix("ray:"), out=request.out, force=request.force)
    load_analysis()
    if (several := _of_several_launchers(request)) is not None:
        return several
    run, about, ranks = _from_run(request) if request.run else _from_pids(request)
    sockets = attach.socket_dir_of(rank.process for rank in ranks if rank.process)
    job = AttachedJob(socket_dir=sockets)
    watch = AttachedWatch(job, run, ranks, on_stuck=lambda: answer_first(run))
    if request.follow:
        with contextlib.suppress(KeyboardInterrupt):
            watch.follow(_say)
            note("nsadiag: the job has ended")
        output.write_run(run, **about, ended_at=output.now(), world_size=len(ranks))
        return RunResult(directory=run.path, verdict=None, exit_code=EXIT_HEALTHY)
    watch.attach(_say)
    verdict = judge_and_report(run, about)
    return RunResult(
        directory=run.path, verdict=verdict, exit_code=exit_code(verdict, None, passthrough=False)
    )


def _of_several_launchers(request: AttachRequest) -> RunResult | None:
    """None where the processes are those of one launcher: ranks, which are judged as such."""
    if request.run:
        return None
    from nsadiag.agent.attaching.roles import roles_among, several
    from nsadiag.commands.attach import roles

    names = roles.named(request.roles)
    if request.everyone and request.targets:
        raise UsageError("pids and --all at once", "give either")
    several_nodes = request.nodes > 1
    if request.everyone:
        pids = roles.pids_of_all(if_none=several_nodes)
    else:
        pids = _pids(request.targets) if request.targets else []
    if not (request.everyone or names or pids):
        return None
    members = roles_among(pids, names)
    if not (names or request.everyone or several_nodes or several(members)):
        return None
    if request.follow:
        raise UsageError("--follow of several roles", "nsadiag attach answers once for them; ask again later")
    command = ["nsadiag", "attach", *(["--all"] if request.everyone else request.targets)]
    command += [word for role in request.roles for word in ("--role", role)]
    if several_nodes:
        from nsadiag.commands.attach.roles_on_nodes import attach_on_nodes

        return attach_on_nodes(members, command, nodes=request.nodes, out=request.out)
    attach = roles.attach_all if request.everyone else roles.attach_roles
    return attach(members, command, out=request.out, force=request.force)


def _say(told: Told) -> None:
    note(f"nsadiag: {told.state}: {told.says}")


Found = tuple[RunDir, dict[str, Any], list[RankState]]


def _from_pids(request: AttachRequest) -> Found:
    pids = _pids(request.targets)
    found, gaps = finding.find_ranks(pids)
    run = output.prepare(request.out, f"attach-{pids[0]}", force=request.force)
    about = _about(run, name=f"attach-{pids[0]}", command=["nsadiag", "attach", *request.targets], gaps=gaps)
    return run, about, attach.states_of(found, run)


def _from_run(request: AttachRequest) -> Found:
    assert request.run is not None
    if request.targets:
        raise UsageError("pids and --run at once", "give either")
    if not (request.run / "ranks").is_dir():
        raise UsageError(f"{request.run} is not a run directory", "give what nsadiag run had as --out")
    if request.out is not None and request.out.resolve() == request.run.resolve():
        raise UsageError(
            f"--out is {request.run} itself", "what it found at first stays: choose another --out"
        )
    name = f"attach-{request.run.resolve().name}"
    source = RunDir(path=request.run)
    finding.check_alive(source)
    run = output.prepare(request.out, name, force=request.force)
    command = read_json(source.run, {}).get("command") or ["nsadiag", "attach", "--run", str(request.run)]
    return run, _about(run, name=name, command=command, gaps=[]), attach.ranks_of_run(source, run)


def _about(run: RunDir, *, name: str, command: list[str], gaps: list[str]) -> dict[str, Any]:
    about: dict[str, Any] = {
        "kind": "attach",
        "name": name,
        "command": command,
        "started_at": output.now(),
        "gaps": gaps,
    }
    output.write_run(run, **about)
    return about


def _pids(targets: list[str]) -> list[int]:
    if not targets:
        raise UsageError("no process given", "nsadiag attach PID..., or nsadiag attach --run DIR")
    for word in targets:
        if word.startswith(("slurm:", "ray:")):
            raise UsageError(
                f"{word} beside other targets", "one job at a time: nsadiag attach slurm:JOBID, ray:JOB"
            )
        if not word.isdigit() or int(word) < 1:
            raise UsageError(f"{word!r} is no pid", "pgrep -af torchrun shows a launcher's")
    return list(dict.fromkeys(int(word) for word in targets))
