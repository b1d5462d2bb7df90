"""`nsadiag run --nnodes N`: each node runs its own launcher line, and the evidence is judged as that of one job."""

from __future__ import annotations

from nsadiag.agent.job.launch import check_command
from nsadiag.agent.job.log_tail import Follow
from nsadiag.cluster.place import Place
from nsadiag.commands import nodes, output
from nsadiag.commands.messages.notices import Lines
from nsadiag.commands.run import (
    RunRequest,
    RunResult,
    answer_first,
    around,
    begin,
    check_request,
    judged,
    load_analysis,
    metrics_of,
    name_of,
    notifier_of,
    options_of,
    say_stopping,
)
from nsadiag.engines.local import run_command
from nsadiag.engines.static import Lead, Part
from nsadiag.engines.static_member import Member
from nsadiag.errors import EXIT_INTERRUPTED

# Lines may well differ between nodes: their own --node-rank, another path.
TASK = "run"


def run_on_nodes(request: RunRequest, place: Place) -> RunResult | nodes.NodeResult:
    """The part of this node. Raises NsadiagError before anything was started."""
    check_request(request) if place.is_first else check_command(request.command)
    line = nodes.line_of(request.command)
    nodes.check_line(line, place)
    return _lead(request, place, line) if place.is_first else _take_part(request, place, line)


def _lead(request: RunRequest, place: Place, line: nodes.Line) -> RunResult:
    run = output.prepare(request.out, name_of(request.command), force=request.force)
    results: list[RunResult] = []

    def act() -> tuple[int, str]:
        result = _run(request, place, line, Lead(crew, run, nodes.crowd()))
        results.append(result)
        said = f"{result.verdict.outcome}: {result.verdict.summary}" if result.verdict else "no verdict"
        return result.exit_code, said

    try:
        crew = nodes.gathered(place, TASK)
        nodes.led(act, crew)
    finally:
        if not any(run.path.iterdir()):
            run.path.rmdir()  # it never came to a run
    return results[0]


def _run(request: RunRequest, place: Place, line: nodes.Line, lead: Lead) -> RunResult:
    run = lead.root
    lead.open(kind="run")
    about = begin(run, request) | {"nodes": [lead.crew.names[rank] for rank in sorted(lead.crew.names)]}
    part = lead.announce(at=".", name="", counts=(), probes=request.probes, options=options_of(request))
    interrupted, watch = False, None
    notifier = notifier_of(request, run)
    lines = Lines(notifier.tell if notifier else None, silent=request.silent)
    follow = Follow(lines.after)
    try:
        with metrics_of(request, run):
            watch = run_command(
                nodes.completed(line, place, part.endpoint),
                run,
                part.options,
                probes=part.probes,
                make_watch=lead.make_watch(part, run),
                on_silence=load_analysis,
                on_stuck=lambda: answer_first(run),
                on_interrupt=say_stopping,
                notices=lines,
                **around(run, request, follow),
            )
    except KeyboardInterrupt:
        interrupted = True
    lead.finish(run)
    return judged(run, about, request, watch, follow, notifier, interrupted=interrupted)


def _take_part(request: RunRequest, place: Place, line: nodes.Line) -> nodes.NodeResult:
    member = nodes.member(place, TASK, out=request.out, force=request.force)
    code = None
    try:
        if not member.shared:
            begin(member.root, request)
        for part in member.parts():
            run = member.directory(part)
            try:
                _run_part(request, nodes.completed(line, place, part.endpoint), member, part)
            except KeyboardInterrupt:
                code = EXIT_INTERRUPTED
            except Exception as error:
                member.give_up(part, error)
                raise
            member.finish(part, run)
            if code is not None:
                break
        return nodes.result_of(member, code)
    finally:
        member.close()


def _run_part(request: RunRequest, command: list[str], member: Member, part: Part) -> None:
    run, lines = member.directory(part), Lines(silent=request.silent)
    follow = Follow(lines.after)  # a backend's report of a timeout may be printed on any node
    run_command(
        command,
        run,
        part.options,
        probes=part.probes,
        make_watch=member.make_watch(part, run),
        on_interrupt=say_stopping,
        notices=lines,
        **around(run, request, follow),
    )
    follow.finish()
