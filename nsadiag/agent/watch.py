"""Watches a running job from outside: who moves, who died and how, when to look closer, when to end it."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from nsadiag.agent import interrupts, processes
from nsadiag.agent.captures import capture_all, capture_last
from nsadiag.agent.captures.target import Target
from nsadiag.agent.launch import Job
from nsadiag.agent.processes import DeathWatch, End, Process
from nsadiag.agent.sampler import Sampler
from nsadiag.agent.stillness import Judgement, judge, motions
from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.evidence.layout import CaptureDir, RankDir, RunDir, read_json, write_json
from nsadiag.evidence.reader import Pulse

POLL_S = 0.1
LOOKS_APART_S = 3.0
MIN_STALL_S = 5.0
WARM_UP_STEPS = 2
RHYTHM_MULTIPLE = 3.0  # a pause this many times the longest one so far is worth a look
LAUNCHER_GRACE_S = 10.0
Stopped = Literal["hang", "timeout", "interrupt"]


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How patient to be. `stall_after_s` None means: learn it from the job's own rhythm."""

    stall_after_s: float | None = None
    timeout_s: float = 0.0  # 0: none
    on_hang: Literal["stop", "leave"] = "stop"
    with_locals: bool = False  # values of local variables in the stacks


@dataclass(kw_only=True)
class RankState:
    """One rank as seen from outside."""

    directory: RankDir
    pid: int
    process: Process | None
    pulse: Pulse
    sequence: int = 0
    steps: int = 0
    end: End | None = None


@dataclass(kw_only=True)
class Look:
    """A pair of captures and what it showed."""

    t_s: float
    first: int
    second: int
    judgement: Judgement
    reason: str
    motions: list[dict[str, Any]] = field(default_factory=list)


class Watch:
    """The state of watching one job; `run` is the whole life of it."""

    def __init__(self, job: Job, directory: RunDir, options: WatchOptions) -> None:
        self.job, self.directory, self.options = job, directory, options
        self.ranks: dict[int, RankState] = {}
        self.looks: list[Look] = []
        self.stopped: Stopped | None = None
        self.left_alive: set[Process] = set()
        self._deaths = DeathWatch()
        self._started = self._moved = time.monotonic()
        self._started_ns = time.monotonic_ns()
        self._longest_quiet = 0.0
        self._look_again_at = 0.0  # seconds of quiet after which the next look is due, once one found it busy
        self._captures = 0
        self._sampler = Sampler()
        self._ending_since_ns: int | None = None  # deaths from here on are our doing

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Watches until the job is over or was ended; always leaves ends.json and watch.json behind.

        To be called with interrupts held off: then none comes between the job's start and its watch.
        """
        try:
            with interrupts.let_in():
                self._loop()
        except KeyboardInterrupt:
            self.stopped = "interrupt"
            raise
        finally:
            if not self._left_running():
                self._end_everything()
            self._write()
            self._deaths.close()

    def _loop(self) -> None:
        launcher_gone_at: float | None = None
        while True:
            interrupts.check()
            self._note_deaths(POLL_S)
            self._discover()
            self._feel_pulses()
            alive = [r for r in self.ranks.values() if r.end is None]
            if self.job.poll() is not None:
                launcher_gone_at = launcher_gone_at or time.monotonic()
                if not alive or time.monotonic() - launcher_gone_at > LAUNCHER_GRACE_S:
                    return
            self._sampler.sample({r.directory: r.process.pid for r in alive if r.process and r.steps})
            if self._timed_out():
                self._look()
                self.stopped = "hang" if self.looks[-1].judgement == "still" else "timeout"
                return
            if alive and self._quiet_s() > self._patience_s() and self._look() == "still":
                self.stopped = "hang"
                return

    def _left_running(self) -> bool:
        return self.stopped == "hang" and self.options.on_hang == "leave"

    def _timed_out(self) -> bool:
        return 0 < self.options.timeout_s < time.monotonic() - self._started

    # -- what moves -------------------------------------------------------------------------------

    def _discover(self) -> None:
        """Ranks announce themselves by their black box; nobody has to tell us their number."""
        for directory in self.directory.ranks():
            known = self.ranks.get(directory.rank)
            if known is not None and known.end is None:
                continue
            meta = read_json(directory.meta)
            # A dead rank whose file names another process has been restarted by its launcher.
            if not meta or (known is not None and known.pid == meta["pid"]):
                continue
            try:
                pulse = Pulse(directory.blackbox)
            except (OSError, ValueError):
                continue
            process = processes.identify(meta["pid"])
            gone = None if process else End(t_mono_ns=time.monotonic_ns())
            self.ranks[directory.rank] = RankState(
                directory=directory, pid=meta["pid"], process=process, pulse=pulse, end=gone
            )
            if process:
                self._deaths.add(process)
            self._progress()

    def _feel_pulses(self) -> None:
        for rank in self.ranks.values():
            last = rank.pulse.last()
            if last is None or int(last["sequence"][0]) == rank.sequence:
                continue
            rank.sequence, rank.steps = int(last["sequence"][0]), int(last["step"][0])
            self._progress()

    def _progress(self) -> None:
        # Start-up and the first steps (compilation, allocation, connecting) are not the job's rhythm.
        if any(rank.steps > WARM_UP_STEPS for rank in self.ranks.values()):
            self._longest_quiet = max(self._longest_quiet, self._quiet_s())
        self._moved = time.monotonic()
        self._look_again_at = 0.0

    def _quiet_s(self) -> float:
        return time.monotonic() - self._moved

    def _patience_s(self) -> float:
        """Seconds of silence after which the job is worth a look."""
        fixed = self.options.stall_after_s
        learnt = max(MIN_STALL_S, RHYTHM_MULTIPLE * self._longest_quiet)
        return max(learnt if fixed is None else fixed, self._look_again_at)

    def _note_deaths(self, seconds: float) -> None:
        for process, end in self._deaths.wait(seconds):
            for rank in self.ranks.values():
                if rank.process == process:
                    rank.end = end
            if self._ending_since_ns is None:
                self._progress()

    # -- a closer look ----------------------------------------------------------------------------

    def _look(self) -> Judgement:
        """Two captures some seconds apart; movement in between ends the suspicion at once."""
        started = time.monotonic()
        first = self._capture(native=False)
        quiet_since = {n: r.sequence for n, r in self.ranks.items()}
        deadline = time.monotonic() + LOOKS_APART_S
        while time.monotonic() < deadline and self.job.poll() is None:
            self._note_deaths(POLL_S)
            self._feel_pulses()
        second = self._capture(native=True)
        self._feel_pulses()
        events = {n: r.sequence - quiet_since[n] for n, r in self.ranks.items() if n in quiet_since}
        alive = [r.directory for r in self.ranks.values() if r.end is None]
        moved = motions(alive, (first, second), events, set(self.ranks))
        judgement, reason = judge(moved)
        shown = [dataclasses.asdict(m) for m in moved]
        self.looks.append(
            Look(
                t_s=started - self._started,
                first=first,
                second=second,
                judgement=judgement,
                reason=reason,
                motions=shown,
            )
        )
        # A sleeper gets the time it asked for, and a little to say so.
        nap_s = max((m.wakes_in_s or 0.0 for m in moved), default=0.0) if judgement == "asleep" else 0.0
        self._look_again_at = max(2 * self._quiet_s(), self._quiet_s() + nap_s + MIN_STALL_S)
        return judgement

    def _capture(self, *, native: bool) -> int:
        self._captures += 1
        capture_all(
            [self._target(r, self._captures) for r in self.ranks.values() if r.end is None],
            native=native,
            with_locals=self.options.with_locals,
        )
        if not self.ranks:
            capture_all(self._unknown_processes(), native=False, with_locals=self.options.with_locals)
        return self._captures

    def _target(self, rank: RankState, number: int) -> Target:
        assert rank.process is not None
        socket = self.job.socket_dir / f"{rank.directory.rank}.sock"
        return Target(pid=rank.process.pid, directory=rank.directory.capture(number), socket=socket)

    def _unknown_processes(self) -> list[Target]:
        """Where no rank ever appeared, the stacks of whatever runs are all there is to show."""
        folder = self.directory.node(os.uname().nodename) / "processes"
        found = sorted(processes.of_run(self.job.run_id), key=lambda p: p.pid)
        number = f"{self._captures:02d}"
        return [
            Target(
                pid=p.pid, directory=CaptureDir(path=folder / str(p.pid) / "captures" / number), socket=None
            )
            for p in found[:16]
        ]

    # -- the end ----------------------------------------------------------------------------------

    def _end_everything(self) -> None:
        """Ranks first, one by one, then the launcher; then looks for anything that carries the run's mark."""
        self._discover()
        self._ending_since_ns = time.monotonic_ns()
        if self.stopped in ("hang", "timeout"):
            # With the number of the last look, whose deaths and errors from here on are our doing.
            capture_last([self._target(r, self._captures) for r in self.ranks.values() if r.end is None])
        ranks = processes.with_children(r.process for r in self.ranks.values() if r.process)
        self.left_alive = processes.end(ranks)
        self._note_the_last_deaths()
        # A launcher that has lost its ranks ends by itself, and says what it saw; one that had none waits on.
        deadline = time.monotonic() + (LAUNCHER_GRACE_S / 2 if self.ranks else 0)
        while self.job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.left_alive |= processes.end(self._leftovers())
        if self.job.poll() is None:
            self.job.abandon()

    def _note_the_last_deaths(self) -> None:
        """A main thread is a zombie a little before its process is: the other threads go last."""
        deadline = time.monotonic() + 1.0
        while any(r.end is None for r in self.ranks.values()) and time.monotonic() < deadline:
            self._note_deaths(POLL_S)

    def _leftovers(self) -> set[Process]:
        return processes.with_children(self.job.roots()) | processes.of_run(self.job.run_id)

    def _write(self) -> None:
        reported = self.job.reported_ends()
        ends = {str(n): self._end_of(r, reported.get(n)) for n, r in sorted(self.ranks.items())}
        write_json(self.directory.ends, ends)
        now = time.monotonic()
        write_json(
            self.directory.watch,
            {
                "started_mono_ns": self._started_ns,
                "launcher_exit_code": self.job.poll(),
                "ended_s": now - self._started,
                "last_progress_s": self._moved - self._started,
                "longest_quiet_s": max(self._longest_quiet, 0.0),
                "patience_s": self._patience_s(),
                "stopped": self.stopped,
                "ending_s": self._s(self._ending_since_ns) if self.stopped else None,
                "left_alive": sorted(p.pid for p in self.left_alive),
                "looks": [dataclasses.asdict(look) for look in self.looks],
            },
        )

    def _s(self, mono_ns: int | None) -> float | None:
        return None if mono_ns is None else (mono_ns - self._started_ns) / 1e9

    def _end_of(self, rank: RankState, reported: int | None) -> dict[str, Any]:
        end = rank.end
        code, number = (end.exit_code, end.signal) if end else (None, None)
        if code is None and number is None and reported is not None:
            code, number = (reported, None) if reported >= 0 else (None, -reported)
        return {
            "pid": rank.pid,
            "t_s": self._s(end.t_mono_ns) if end else None,
            "exit_code": code,
            "signal": number,
            "by_us": self._ending_since_ns is not None
            and (end is None or end.t_mono_ns > self._ending_since_ns),
            "clean": _said_goodbye(rank),
            "steps": rank.steps,
        }


def _said_goodbye(rank: RankState) -> bool:
    """Whether the interpreter got as far as its exit handlers."""
    last = rank.pulse.last()
    return last is not None and (int(last["kind"][0]), int(last["phase"][0])) == (Kind.PROCESS, Phase.END)
