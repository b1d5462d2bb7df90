"""Runs jobs on this machine: a launcher line as it is, or a command under a launcher that stays warm."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nsadiag.agent import interrupts, processes
from nsadiag.agent.job import log_limit, ring_storage, scratch
from nsadiag.agent.job.guarded_process import Guarded
from nsadiag.agent.job.launch import CommandJob, job_environment, new_run_id, recorder_environment
from nsadiag.agent.job.log_tail import Follow
from nsadiag.agent.processes import Process
from nsadiag.agent.watching.state import Answer, Notices, OnOthers, WatchOptions
from nsadiag.evidence.layout import (
    NODE,
    RankDir,
    RunDir,
    make_private_dir,
    open_private,
    read_json,
    this_node,
)

if TYPE_CHECKING:
    from nsadiag.agent.watching.watch import Watch

# As Watch is made; one that others take part in needs more, which its maker knows.
MakeWatch: TypeAlias = "Callable[..., Watch]"

UNWATCHED_POLL_S = 0.1


def watch_class() -> type[Watch]:
    """The watch, to be imported before a job starts: what the job does to our files must not keep it from being watched."""
    from nsadiag.agent.watching.watch import Watch

    return Watch


class Unwatched(Exception):
    """The watch failed, and the job went on without it to its end: `cause`, and the launcher's exit code."""

    def __init__(self, cause: Exception, code: int) -> None:
        super().__init__(str(cause))
        self.cause, self.code = cause, code


@dataclass(frozen=True, kw_only=True)
class Front:
    """A job that stands in front of a person: it has their stdin and terminal, and its output is shown.

    `out` and `err` are the descriptors on which.
    """

    out: int = 1
    err: int = 2
    follow: Follow
    log_limit_mib: float = 0.0


def run_command(
    command: list[str],
    run: RunDir,
    options: WatchOptions,
    *,
    probes: str = "light",
    env: Mapping[str, str] | None = None,
    front: Front | None = None,
    on_silence: Callable[[], None] | None = None,
    on_stuck: Callable[[], Answer | None] | None = None,
    notices: Notices | None = None,
    on_others: OnOthers | None = None,
    ring: ring_storage.Choice = "auto",
    die_with_me: bool = True,
    outlives_watch: bool = False,
    on_interrupt: Callable[[], None] | None = None,
    cwd: Path | None = None,
    make_watch: MakeWatch | None = None,
) -> Watch:
    """Runs a launcher line to its end, watched.

    `on_silence`, `on_stuck`, `notices` and `on_others` are those of `Watch`; `make_watch` makes one that others take part in.
    `die_with_me`: the job is ended should we be killed; else it goes on unwatched. `outlives_watch`: should the watch fail, the
    job goes on to its end, and Unwatched is raised then; else it is ended. `on_interrupt`: called at once, at the first interrupt of a job that
    runs.
    """
    make_watch = make_watch or watch_class()
    with (
        scratch.made(run) as sockets,
        ring_storage.held(run, ring) as (more, memory),
        interrupts.held_off(),
    ):
        job = CommandJob(
            command,
            run,
            sockets,
            probes=probes,
            env={**(env or {}), **more},
            die_with_me=die_with_me,
            in_front=front is not None,
            cwd=cwd,
            elsewhere=memory,
        )
        hear = functools.partial(_interrupted, job, on_interrupt)
        with _ended_or_left(job), interrupts.notifying(hear), _shown(job, run, front):
            try:
                more_asked = {"on_others": on_others} if on_others else {}
                watch = make_watch(
                    job, run, options, on_silence=on_silence, on_stuck=on_stuck, notices=notices, **more_asked
                )
                watch.run()
            except Exception as error:
                if not outlives_watch:
                    raise
                raise Unwatched(error, _end_of(job)) from error
            if watch.left_running:
                # `nsadiag attach --run` asks the ranks again.
                job.leave()
    return watch


def _interrupted(job: CommandJob, on_interrupt: Callable[[], None] | None) -> None:
    job.ending()
    if on_interrupt and any(map(processes.is_alive, job.roots())):
        on_interrupt()


def _end_of(job: CommandJob) -> int:
    with interrupts.let_in():
        while (code := job.poll()) is None:
            time.sleep(UNWATCHED_POLL_S)
    return code


@contextlib.contextmanager
def _ended_or_left(job: CommandJob) -> Iterator[None]:
    try:
        yield
    finally:
        job.close()


@contextlib.contextmanager
def _shown(job: CommandJob, run: RunDir, front: Front | None) -> Iterator[None]:
    if front is None:
        yield
        return

    def files() -> dict[Path, int]:
        ranks = [r for r in run.ranks() if _is_here(r)]
        return {
            job.stdout: front.out,
            job.stderr: front.err,
            **{r.stdout: front.out for r in ranks},
            **{r.stderr: front.err for r in ranks},
        }

    def pause() -> None:
        job.pause()
        # A prompt that nobody answers yet is to be seen before the shell says that we are stopped.
        front.follow.catch_up()

    with (
        interrupts.stopped_with(pause, job.resume),
        interrupts.passed_on(job.pass_on),
        log_limit.limited(files, front.log_limit_mib),
        front.follow.following(files),
    ):
        yield


def _is_here(rank: RankDir) -> bool:
    """Whether its output is for this node to show, where several nodes write into one directory."""
    return NODE not in os.environ or read_json(rank.meta, {}).get("host") == this_node()


CLOSING_S = 3.0


class WarmLauncher:
    """A process with torch imported that starts one cell at a time; start it early, it needs some seconds.

    What a rank finds in its environment at start-up is this process's: cells that differ in environment
    variables need a launcher each.
    """

    def __init__(
        self, log: Path, *, preload: tuple[str, ...], env: Mapping[str, str], run_id: str | None = None
    ) -> None:
        self.run_id, self.env = run_id or new_run_id(), dict(env)
        self._log, self._preload = log, preload
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._start()

    def _start(self) -> None:
        reader, writer = os.pipe()
        # OMP_NUM_THREADS as torchrun sets it where the user has not.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **self.env, processes.RUN_ID: self.run_id}
        environment |= recorder_environment(environment)
        # Asking CUDA whether it is there would initialise it, and a process forked after that cannot use it.
        environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        with open_private(self._log, "ab") as log:
            self._guarded = Guarded(
                [sys.executable, "-m", "nsadiag.agent.job.warm_launcher", str(writer), *self._preload],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, pass_fds=(writer,), die_with_me=True,
            )  # fmt: skip
        os.close(writer)
        # Given its queue: the reader of a launcher that was replaced must not answer for its successor.
        arguments = (reader, self._answers)
        threading.Thread(target=self._read, args=arguments, name="nsadiag-warm", daemon=True).start()

    def _read(self, reader: int, into: queue.Queue[dict[str, Any]]) -> None:
        with os.fdopen(reader) as answers:
            for line in answers:
                into.put(json.loads(line))
        into.put({"exit_code": 1, "ends": {}, "error": "the launcher ended"})

    def job(
        self,
        argv: list[str],
        run: RunDir,
        socket_dir: Path,
        *,
        world_size: int,
        probes: str,
        env: Mapping[str, str],
        cwd: Path | None = None,
        among: Mapping[str, Any] | None = None,
    ) -> WarmJob:
        """Starts the command on `world_size` ranks, in `cwd` if it is given, else here.

        `among`: where other nodes have their part of the job, `id`, `nnodes`, `node_rank` and `endpoint`.
        """
        if self._guarded.poll() is not None:
            self.restart()
        added = {**self.env, **job_environment(run, self.run_id, socket_dir, probes), **env}
        request = {
            "id": new_run_id(),
            "argv": argv,
            "world_size": world_size,
            "env": added,
            "cwd": str(cwd or Path.cwd()),
            **(among or {}),
        }
        assert self._guarded.stdin is not None
        self._guarded.stdin.write((json.dumps(request) + "\n").encode())
        self._guarded.stdin.flush()
        return WarmJob(self, socket_dir)

    def answer(self) -> dict[str, Any] | None:
        with contextlib.suppress(queue.Empty):
            return self._answers.get_nowait()
        return None

    def restart(self) -> None:
        """A new process, after whatever went wrong in the old one."""
        self.close()
        self._answers = queue.Queue()
        self._start()

    def close(self) -> None:
        """Ends the launcher and everything it started."""
        if self._guarded.stdin:
            with contextlib.suppress(OSError):
                self._guarded.stdin.close()
        # At end of file it leaves by itself, quietly; SIGTERM would have elastic print a traceback.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guarded.wait(CLOSING_S)
        self._guarded.close()
        processes.end(processes.of_run(self.run_id))


class WarmJob:
    """One cell on a warm launcher."""

    def __init__(self, launcher: WarmLauncher, socket_dir: Path) -> None:
        self.launcher, self.socket_dir = launcher, socket_dir
        self.run_id = new_run_id()  # its ranks are known by their registration; the mark is the launcher's
        self._answer: dict[str, Any] | None = None

    def poll(self) -> int | None:
        self._answer = self._answer or self.launcher.answer()
        return None if self._answer is None else int(self._answer["exit_code"])

    def roots(self) -> list[Process]:
        return []  # the launcher lives on

    def family(self) -> set[Process]:
        return processes.of_run(self.run_id)

    def reported_ends(self) -> dict[int, int]:
        return {int(rank): code for rank, code in (self._answer or {}).get("ends", {}).items()}

    def ending(self) -> None:
        return

    def abandon(self) -> None:
        self.launcher.restart()


def run_warm(
    launcher: WarmLauncher,
    argv: list[str],
    run: RunDir,
    options: WatchOptions,
    *,
    world_size: int,
    probes: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    among: Mapping[str, Any] | None = None,
    make_watch: MakeWatch | None = None,
) -> Watch:
    """Runs one cell to its end, watched; `world_size` is of the ranks here. `env`: variables of this cell's alone."""
    make_watch = make_watch or watch_class()
    make_private_dir(run.path)
    with scratch.made(run) as sockets, ring_storage.held(run) as (more, _), interrupts.held_off():
        added = {**(env or {}), **more}
        job = launcher.job(
            argv, run, sockets, world_size=world_size, probes=probes, env=added, cwd=cwd, among=among
        )
        watch = make_watch(job, run, options)
        watch.run()
    return watch
