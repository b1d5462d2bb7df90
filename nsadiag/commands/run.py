"""`nsadiag run`: any launcher line, watched, judged, reported."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsadiag.agent import interrupts
from nsadiag.agent.captures.gpu import core_files
from nsadiag.agent.job.launch import check_command
from nsadiag.agent.job.log_limit import close_holes
from nsadiag.agent.job.log_tail import Follow
from nsadiag.agent.job.ring_storage import Choice
from nsadiag.agent.watching.state import Answer, OnHang, WatchOptions
from nsadiag.commands import output
from nsadiag.commands.messages import metrics, notify, status_line
from nsadiag.commands.messages.notices import CONSEQUENCE, Lines
from nsadiag.engines.local import Front, Unwatched, run_command
from nsadiag.errors import (
    EXIT_FINDING,
    EXIT_HEALTHY,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_TIMEOUT,
    MachineError,
    NsadiagError,
)
from nsadiag.evidence.documents import kept
from nsadiag.evidence.layout import RunDir, this_node
from nsadiag.evidence.spans import shortened
from nsadiag.experiments.commits import code_at
from nsadiag.printing import note

if TYPE_CHECKING:
    from nsadiag.agent.watching.watch import Watch
    from nsadiag.evidence.records import Verdict

MOST_OF_NAME = 200
STOPPING = f"nsadiag: stopping: one last snapshot, then the verdict (Ctrl-C again to skip it). {CONSEQUENCE}"


@dataclass(frozen=True, kw_only=True)
class Root:
    """An attempt, and what it failed of."""

    directory: str
    signature: str
    guilty_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A parsed `nsadiag run` line."""

    command: list[str]
    out: Path | None = None
    timeout_s: float = 0.0
    stall_after_s: float | None = None
    patience_s: float | None = None
    on_hang: OnHang = "stop"
    probes: str = "light"
    passthrough: bool = False
    force: bool = False
    with_locals: bool = False
    cuda_core: bool = False
    ring: Choice = "auto"
    die_with_me: bool = False
    attempt: int = 1
    earlier: tuple[Root, ...] = ()  # of --restart-on, the attempts before this one
    log_limit_mib: float = 0.0  # of each log; 0: none
    notify: tuple[str, ...] = ()  # addresses and commands
    metrics: Path | None = None
    silent: bool = False  # nothing on stderr before the verdict but errors
    healthy_report: bool = True  # report.md and report.html of a healthy job, too
    quiet_stdout: bool = False  # stdout is for JSON: the job's output goes to stderr


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run. `failure`: the reason for a missing verdict, where the exit code is still the job's."""

    directory: Path
    verdict: Verdict | None
    exit_code: int
    failure: Exception | None = None
    left_running: bool = False


def run_once(request: RunRequest, *, launched: list[str] | None = None, **more: Any) -> RunResult:
    """Runs the job to its end or ours. Raises NsadiagError before anything was started, never after.

    `launched` is what is started in the place of the command; `more` are settings of `run_command` besides those of the request.
    """
    with interrupts.let_in():
        check_request(request)
        attempt = f"-attempt{request.attempt}" if request.attempt > 1 else ""
        run = output.prepare(request.out, name_of(request.command) + attempt, force=request.force)
    kept.start()
    # An interrupt ends the job, and nothing of what follows its end but what would be waited for.
    with interrupts.held_off():
        return _run(request, run, launched or request.command, more)


def _run(request: RunRequest, run: RunDir, command: list[str], more: dict[str, Any]) -> RunResult:
    about = begin(run, request)
    interrupted, watch = False, None
    notifier = notifier_of(request, run)
    status = None if request.silent else status_line.at_terminal()
    lines = Lines(notifier.tell if notifier else None, silent=request.silent, status=status)
    follow = Follow(lines.after, status.output) if status else Follow(lines.after)
    lines.started(run.path)
    pace = status_line.Pace(run)
    try:
        with (
            metrics_of(request, run),
            lines.first_step(run),
            showing(status, pace.words),
        ):
            watch = run_command(
                command,
                run,
                options_of(request),
                probes=request.probes,
                on_silence=load_analysis,
                on_stuck=lambda: answer_first(run),
                on_others=functools.partial(ask_roles, run),
                on_interrupt=functools.partial(say_stopping, status),
                notices=lines,
                **({"outlives_watch": True} | around(run, request, follow) | more),
            )
    except KeyboardInterrupt:
        interrupted = True
    except Unwatched as failed:
        with interrupts.skippable():
            follow.finish()
        if not request.passthrough:
            raise failed.cause from None
        return RunResult(
            directory=run.path, verdict=None, exit_code=shown_code(failed.code), failure=failed.cause
        )
    with showing(status, pace.elapsed, "reading the evidence"):
        verdict, failure = answer(run, about, request, interrupted=interrupted)
    return concluded(run, request, watch, follow, notifier, verdict, failure, interrupted=interrupted)


def check_request(request: RunRequest) -> None:
    """Raises NsadiagError for a command that cannot be started, and for whom or what it cannot be reported to."""
    check_command(request.command)
    notify.check(request.notify)
    if request.metrics:
        metrics.check(request.metrics)


def showing(
    status: status_line.StatusLine | None, words: Callable[[], str], phase: str = ""
) -> contextlib.AbstractContextManager[None]:
    """The status line, where there is one, within the block."""
    if status is None:
        return contextlib.nullcontext()
    status.now(phase)
    return status.shown(words)


def notifier_of(request: RunRequest, run: RunDir) -> notify.Notifier | None:
    """For the targets that were asked for."""
    if not request.notify:
        return None
    return notify.Notifier(targets=tuple(request.notify), run=run, name=name_of(request.command))


def metrics_of(request: RunRequest, run: RunDir) -> contextlib.AbstractContextManager[None]:
    """Keeps the file of metrics up to date, if there is to be one."""
    file = _metrics_file(request, run)
    return file.kept() if file else contextlib.nullcontext()


def _metrics_file(request: RunRequest, run: RunDir) -> metrics.MetricsFile | None:
    if not request.metrics:
        return None
    return metrics.MetricsFile(path=request.metrics, run=run, name=name_of(request.command))


def tell(request: RunRequest, run: RunDir, notifier: notify.Notifier | None, verdict: Verdict) -> None:
    """The verdict to everyone who was named."""
    file = _metrics_file(request, run)
    if file:
        with contextlib.suppress(OSError):
            file.write(verdict)
    if notifier:
        notifier.verdict(verdict)


def say_stopping(status: status_line.StatusLine | None = None) -> None:
    """At the first Ctrl-C: what is going on, and how to have it at once; a second one then finds the analysis loaded."""
    # By the descriptor: this may come while something else writes to sys.stderr.
    with contextlib.suppress(OSError), status.output() if status else contextlib.nullcontext():
        os.write(2, f"{status.wrapped(STOPPING) if status else STOPPING}\n".encode())
    if status:
        status.now("stopping the job")
    load_analysis()


def judged(
    run: RunDir,
    about: dict[str, Any],
    request: RunRequest,
    watch: Watch | None,
    follow: Follow,
    notifier: notify.Notifier | None,
    *,
    interrupted: bool,
) -> RunResult:
    """The verdict of what lies in the directory, and the exit code; the job's output has been shown before it returns."""
    verdict, failure = answer(run, about, request, interrupted=interrupted)
    return concluded(run, request, watch, follow, notifier, verdict, failure, interrupted=interrupted)


def answer(
    run: RunDir, about: dict[str, Any], request: RunRequest, *, interrupted: bool
) -> tuple[Verdict | None, Exception | None]:
    """The verdict, or the reason for a missing one where the exit code is still the job's."""
    try:
        return judge_and_report(run, about, healthy_report=request.healthy_report), None
    except Exception as error:
        error = explained(error, run)
        if interrupted or not request.passthrough:
            raise error from None
        return None, error


def explained(error: Exception, run: RunDir) -> Exception:
    """The error; of a module that is there no more the reason, and the remedy."""
    if not isinstance(error, ImportError):
        return error
    return MachineError(
        f"nsadiag was removed or replaced while the job ran: {error}",
        f"install it again, then: nsadiag analyze {run.path}",
    )


def concluded(
    run: RunDir,
    request: RunRequest,
    watch: Watch | None,
    follow: Follow,
    notifier: notify.Notifier | None,
    verdict: Verdict | None,
    failure: Exception | None,
    *,
    interrupted: bool,
) -> RunResult:
    """Everybody is told, and the job's output has been shown when this returns; the next interrupt ends either wait."""
    with interrupts.skippable():
        say_unwritten(watch)
        follow.finish()
    with interrupts.skippable():
        if verdict:
            tell(request, run, notifier, verdict)
    left = watch is not None and watch.left_running
    if watch is not None and left and not request.silent:
        say_left(run, watch)
    if request.log_limit_mib and watch is not None and not left:
        close_holes(logs_of(run))
    code = EXIT_INTERRUPTED if interrupted else exit_code(verdict, watch, passthrough=request.passthrough)
    return RunResult(directory=run.path, verdict=verdict, exit_code=code, failure=failure, left_running=left)


def say_left(run: RunDir, watch: Watch) -> None:
    """The job goes on: how to look at it again, and how to end it."""
    living = [str(rank.pid) for rank in watch.ranks.values() if rank.end is None]
    launchers = " ".join(str(root.pid) for root in watch.job.roots())
    note(
        f"nsadiag: the job still runs, as it was found (pids {shortened(living)}). To look again: nsadiag where {run.path}; "
        f"for another verdict: nsadiag attach --run {run.path}; to end it: kill {launchers or ' '.join(living)}"
    )


def logs_of(run: RunDir) -> list[Path]:
    """The output of the job."""
    launchers = [run.node(this_node()) / f"launcher.{name}.log" for name in ("stdout", "stderr")]
    return [*launchers, *(log for rank in run.ranks() for log in (rank.stdout, rank.stderr))]


def say_unwritten(watch: Watch | None) -> None:
    """One line on what of the evidence has found no room on the disk, and one on each failure of the watch's own."""
    found = kept.unwritten()
    if found:
        names = ", ".join(sorted({Path(path).name for path in found}))
        note(f"nsadiag: not written: {names} ({next(iter(found.values()))})")
    for failure in watch.failures if watch else ():
        note(f"nsadiag: the watch has a gap: {failure}")


def begin(run: RunDir, request: RunRequest) -> dict[str, Any]:
    """Writes run.json as far as it is known; returns what it says, to be written again at the end."""
    about: dict[str, Any] = {
        "kind": "run",
        "name": name_of(request.command),
        "command": request.command,
        "started_at": output.now(),
        **({"attempt": request.attempt} if request.attempt > 1 else {}),
        **({"earlier": [dataclasses.asdict(each) for each in request.earlier]} if request.earlier else {}),
        **({"code": code} if (code := code_of(request.command)) else {}),
    }
    output.write_run(run, **about)
    return about


def code_of(command: list[str]) -> dict[str, Any] | None:
    """The commit of the checkout that the script is in, or the working directory; None where there is none."""
    script = next((Path(word) for word in command if word.endswith(".py") and Path(word).exists()), None)
    return code_at((script.parent if script else Path()).resolve())


def options_of(request: RunRequest) -> WatchOptions:
    return WatchOptions(
        stall_after_s=request.stall_after_s,
        patience_s=request.patience_s,
        timeout_s=request.timeout_s,
        on_hang=request.on_hang,
        with_locals=request.with_locals,
    )


def around(run: RunDir, request: RunRequest, follow: Follow) -> dict[str, Any]:
    """The settings that each node decides for itself: the job's environment, output, ring and lifetime."""
    env = core_files.environment(run.node(this_node())) if request.cuda_core else None
    front = Front(out=2 if request.quiet_stdout else 1, follow=follow, log_limit_mib=request.log_limit_mib)
    return {"env": env, "front": front, "ring": request.ring, "die_with_me": request.die_with_me}


def load_analysis() -> None:
    """All rules, and the page's templates, take a while to load: in the silence before a verdict nobody waits for it."""

    def load() -> None:
        from nsadiag.analysis import verdict  # noqa: F401
        from nsadiag.reports.formats import html, registry  # noqa: F401

        with contextlib.suppress(Exception):  # said where the page is made
            html.compile_run_page()

    threading.Thread(target=load, name="nsadiag-analysis", daemon=True).start()


def answer_first(run: RunDir) -> Answer | None:
    """verdict.json, while the job still runs; it is judged again when it is known how it ended.

    None where that fails: a full disk, or evidence beyond us.
    """
    from nsadiag.analysis.roles import is_of_roles
    from nsadiag.analysis.verdict import judge_directory

    try:
        verdict = judge_directory(run.path, live=True)
    except Exception:
        return None
    certainty = verdict.certainty or "suspected"
    if is_of_roles(verdict):
        # Nothing but time shows that nobody else will ask any of them.
        certainty = "suspected"
    return Answer(certainty=certainty, says=verdict.summary)


def ask_roles(run: RunDir, *args: Any) -> Any:
    """Ask `look_at_roles`, which is imported then."""
    from nsadiag.commands.attach.roles_of_run import look_at_roles

    return look_at_roles(run, *args)


def judge_and_report(run: RunDir, about: dict[str, Any], *, healthy_report: bool = True) -> Verdict:
    """Verdict first, on disk, whatever interrupts; then the documents that show it, unless somebody is in a hurry."""
    with interrupts.held_off():
        from nsadiag.analysis.verdict import judge_directory

        verdict = judge_directory(run.path, live=True)
        output.write_run(run, **about, ended_at=output.now(), world_size=verdict.world_size)
    if not interrupts.hurried() and (healthy_report or verdict.outcome != "healthy"):
        try:
            with interrupts.skippable():
                from nsadiag.reports.formats.registry import write_reports

                write_reports(run.path)
        except Exception as error:
            # The verdict is there, and can still be shown on the terminal.
            error = explained(error, run)
            said = error.message if isinstance(error, NsadiagError) else repr(error)
            note(f"nsadiag: no report could be made: {said}")
    return verdict


def shown_code(job_code: int) -> int:
    """As a shell has it: 128 + N where signal N ended the job."""
    return job_code if job_code >= 0 else 128 - job_code


def exit_code(verdict: Verdict | None, watch: Watch | None, *, passthrough: bool) -> int:
    """docs/contract.md, "Exit codes"."""
    job_code = watch.job.poll() if watch else None
    if passthrough and job_code is not None:
        return shown_code(job_code)
    if verdict is None:
        return EXIT_INTERNAL
    timed_out = watch is not None and watch.stopped == "timeout"
    if verdict.outcome == "incomplete" or (timed_out and verdict.outcome in ("healthy", "slow", "unknown")):
        return EXIT_TIMEOUT
    if verdict.outcome == "healthy" or (verdict.outcome == "unknown" and job_code == 0):
        return EXIT_HEALTHY
    return EXIT_FINDING


def name_of(command: list[str]) -> str:
    # In `bash -c '... python train.py'` the script is the last of several words.
    script = next((w.split()[-1] for w in command if w.endswith(".py")), None)
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else None
    return (Path(script).stem if script else module or Path(command[0]).name)[:MOST_OF_NAME]
