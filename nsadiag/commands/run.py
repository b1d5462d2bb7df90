"""`nsadiag run`: any launcher line, watched, judged, reported."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nsadiag.agent.launch import check_command
from nsadiag.agent.rings import Choice
from nsadiag.agent.state import WatchOptions
from nsadiag.agent.watch import Watch
from nsadiag.commands import output
from nsadiag.commands.quiet import QuietNotes
from nsadiag.engines.local import run_command
from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY, EXIT_INTERRUPTED, EXIT_TIMEOUT
from nsadiag.evidence import cuda_core
from nsadiag.evidence.layout import RunDir, this_node
from nsadiag.evidence.records import Verdict


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A parsed `nsadiag run` line."""

    command: list[str]
    out: Path | None = None
    timeout_s: float = 0.0
    stall_after_s: float | None = None
    on_hang: Literal["stop", "leave"] = "stop"
    probes: str = "light"
    passthrough: bool = False
    force: bool = False
    with_locals: bool = False
    cuda_core: bool = False
    ring: Choice = "auto"
    quiet_stdout: bool = False  # stdout is for JSON: the job's output goes to stderr


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What came of it."""

    directory: Path
    verdict: Verdict
    exit_code: int


def run_once(request: RunRequest) -> RunResult:
    """Runs the job to its end or ours. Raises NsadiagError before anything was started, never after."""
    check_command(request.command)
    run = output.prepare(request.out, name_of(request.command), force=request.force)
    about = begin(run, request)
    interrupted, watch = False, None
    try:
        watch = run_command(
            request.command,
            run,
            options_of(request),
            probes=request.probes,
            on_silence=load_analysis,
            on_stuck=lambda: answer_first(run),
            on_quiet=QuietNotes(),
            **around(run, request),
        )
    except KeyboardInterrupt:
        interrupted = True
    verdict = judge_and_report(run, about)
    code = EXIT_INTERRUPTED if interrupted else exit_code(verdict, watch, passthrough=request.passthrough)
    return RunResult(directory=run.path, verdict=verdict, exit_code=code)


def begin(run: RunDir, request: RunRequest) -> dict[str, Any]:
    """Writes run.json as far as it is known; returns what it says, to be written again at the end."""
    about: dict[str, Any] = {
        "kind": "run",
        "name": name_of(request.command),
        "command": request.command,
        "started_at": output.now(),
    }
    output.write_run(run, **about)
    return about


def options_of(request: RunRequest) -> WatchOptions:
    return WatchOptions(
        stall_after_s=request.stall_after_s,
        timeout_s=request.timeout_s,
        on_hang=request.on_hang,
        with_locals=request.with_locals,
    )


def around(run: RunDir, request: RunRequest) -> dict[str, Any]:
    """What each node decides for itself: where its output goes, and what its GPUs and its disk are asked for."""
    sinks = (sys.stderr.buffer if request.quiet_stdout else sys.stdout.buffer, sys.stderr.buffer)
    env = cuda_core.environment(run.node(this_node())) if request.cuda_core else None
    return {"env": env, "echo": sinks, "ring": request.ring}


def load_analysis() -> None:
    """pandas takes a second to import: in the silence before a verdict nobody waits for it."""

    def load() -> None:
        from nsadiag.analysis import verdict  # noqa: F401

    threading.Thread(target=load, name="nsadiag-analysis", daemon=True).start()


def answer_first(run: RunDir) -> None:
    """verdict.json, while the job is still there to be ended; it is judged again when it is known how it ended."""
    from nsadiag.analysis.verdict import judge_directory

    # Where the disk is full, or the evidence beyond us, the job is to be ended all the same.
    with contextlib.suppress(Exception):
        judge_directory(run.path, live=True)


def judge_and_report(run: RunDir, about: dict[str, Any]) -> Verdict:
    """Verdict first, on disk, then the documents that show it."""
    from nsadiag.analysis.verdict import judge_directory
    from nsadiag.reports import write_reports

    verdict = judge_directory(run.path, live=True)
    output.write_run(run, **about, ended_at=output.now(), world_size=verdict.world_size)
    write_reports(run.path)
    return verdict


def exit_code(verdict: Verdict, watch: Watch | None, *, passthrough: bool) -> int:
    """docs/contract.md, "Exit codes"."""
    job_code = watch.job.poll() if watch else None
    if passthrough and job_code is not None:
        return job_code if job_code >= 0 else 128 - job_code
    if watch and watch.stopped == "timeout" and verdict.outcome in ("healthy", "slow", "unknown"):
        return EXIT_TIMEOUT
    if verdict.outcome == "healthy" or (verdict.outcome == "unknown" and job_code == 0):
        return EXIT_HEALTHY
    return EXIT_FINDING


def name_of(command: list[str]) -> str:
    script = next((w for w in command if w.endswith(".py")), None)
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else None
    return Path(script).stem if script else module or Path(command[0]).name
