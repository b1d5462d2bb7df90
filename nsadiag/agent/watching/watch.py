"""Watches a running job from outside: who moves, who died and how, when to look closer, when to end it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.captures.capturing import capture_last, capture_slow
from nsadiag.agent.captures.python.nonblocking_stacks import NonblockingStacks
from nsadiag.agent.captures.worker_server import WorkerServer
from nsadiag.agent.job.launch import Job
from nsadiag.agent.job.stop import end_job
from nsadiag.agent.processes import DeathWatch, End, Process, is_alive, with_children
from nsadiag.agent.stillness.activity import Activity, Usage, usage
from nsadiag.agent.stillness.judgement import NAP_S, Judgement, judge
from nsadiag.agent.stillness.motion import Motion, Seen, at_work, joined, stances
from nsadiag.agent.stillness.patience import MIN_STALL_S, Patience, crowding
from nsadiag.agent.watching.capture_series import CaptureSeries
from nsadiag.agent.watching.discovery import Discovery
from nsadiag.agent.watching.exit_records import Times, end_of
from nsadiag.agent.watching.late_joiners import may_come
from nsadiag.agent.watching.loop_checks import LoopChecks
from nsadiag.agent.watching.oom import OomWatch
from nsadiag.agent.watching.sampler import Sampler
from nsadiag.agent.watching.state import (
    Answer,
    Look,
    Notices,
    OnOthers,
    Pair,
    RankState,
    Stopped,
    WatchOptions,
)
from nsadiag.agent.watching.suspicions import Suspicions
from nsadiag.agent.whereabouts import Sought, whereabouts
from nsadiag.evidence.layout import RunDir, write_json
from nsadiag.source.archive import keep_sources

POLL_S = 0.1
QUIET_S = 1.0  # of silence, from which on the ranks are watched from outside as well
WARM_UP_STEPS = 2
STOPPED_S = 5.0  # that a wait of POLL_S took: we were stopped
LAUNCHER_GRACE_S = 10.0
ENDED_S = 2.0


class Watch:
    """The state of watching one job; `run` is the whole life of it."""

    launcher_speaks = True  # it says what it saw of its ranks

    def __init__(
        self,
        job: Job,
        directory: RunDir,
        options: WatchOptions,
        *,
        on_silence: Callable[[], None] | None = None,
        on_stuck: Callable[[], Answer | None] | None = None,
        notices: Notices | None = None,
        on_others: OnOthers | None = None,
    ) -> None:
        """`on_silence` is called once, when a first silence begins; `on_stuck` with the evidence of a still job on disk.

        It answers how certain a hang is; without an answer every still job counts as hung. `on_others` is asked whenever no
        rank does anything, with all processes of the job and the pids of its ranks.
        """
        self.job, self.directory, self.options = job, directory, options
        self._on_others = on_others
        self._on_silence, self._on_stuck, self._notices = on_silence, on_stuck, notices
        self.ranks: dict[int, RankState] = {}
        self.looks: list[Look] = []
        self.stopped: Stopped | None = None
        self.left_alive: set[Process] = set()
        self.failures: list[str] = []  # of our own
        self._interrupted_s: float | None = (
            None  # the silence in which it was; one that patience bears is no hang
        )
        self._deaths = DeathWatch()
        self._started = time.monotonic()
        self._started_ns = time.monotonic_ns()
        self.suspicions = Suspicions(notices, self._started)
        self._activity = Activity(self._strays)
        self.patience = Patience(
            options.stall_after_s,
            self._started,
            expected_s=options.expected_quiet_s,
            crowding=crowding,
            slowed=self._activity.slowed,
        )
        self._waiting: set[int] = (
            set()
        )  # ranks that the last look found waiting for their peers, or in a loop without an end
        self.captures = CaptureSeries(job, directory, with_locals=options.with_locals)
        self._discovery = Discovery(directory, self.ranks, self._is_here)
        stacks = NonblockingStacks(lambda rank: job.socket_dir / f"{rank}.sock")
        self._sampler = Sampler(stacks)
        self._oom = OomWatch()
        self._loops = LoopChecks(directory, stacks)
        self._ending_since_ns: int | None = None  # deaths from here on are our doing
        self._launcher_gone_at: float | None = None
        self._home = directory.path  # of watch.json and ends.json

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Watches until the job is over or was ended; always leaves ends.json and watch.json behind.

        To be called with interrupts held off: then none comes between the job's start and its watch.
        """
        try:
            with interrupts.let_in():
                self._loop()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self._has_ended():
                return
            self._last_look()
            # Ctrl-C: the job did not come to its own end.
            self.stopped = "interrupt"
            raise
        finally:
            if not self.left_running:
                self._end_everything()
            self.write()
            self.close()

    def _loop(self) -> None:
        while True:
            interrupts.check()
            self._pass_time()
            try:
                if self._round():
                    return
            except Exception as error:
                # A full disk, or a mistake of ours: it costs evidence, and never the job.
                self._failed(error)
                if self._timed_out():
                    self.stopped = self.stopped or "timeout"
                if self.stopped or self.job.poll() is not None:
                    return

    def _pass_time(self) -> None:
        """A moment; one that took much longer was not the job's: we were stopped (Ctrl-Z), or the machine slept."""
        before = time.monotonic()
        self._note_deaths(POLL_S)
        if time.monotonic() - before > STOPPED_S:
            self._progress()

    def _round(self) -> bool:
        """Whether that was the last: the job is over, or is to be ended for the reason in `stopped`."""
        self._discover()
        self._feel_pulses()
        self._say_withdrawn()
        alive = self._alive()
        if self._is_over(alive):
            return True
        # From the first iteration of any: a rank that never comes to iterate is of most interest then.
        if any(r.iterations for r in alive):
            self._sampler.sample({r.directory: r.process.pid for r in alive if r.process})
        if self._went_too_far():
            self.stopped = "timeout"
        elif self._timed_out():
            self.stopped = "hang" if self.look() == "still" else "timeout"
            if self.stopped == "timeout" and self._notices:
                self._notices.timed_out(self.options.timeout_s)
        else:
            self._watch_activity(alive)
            if self._is_due(alive) and self.look() == "still" and not self.suspicions.stands:
                self.stopped = "hang"
        return self.stopped is not None

    def _failed(self, error: Exception) -> None:
        """Says so once, and is quiet if it comes again and again."""
        what = f"{type(error).__name__}: {error}"
        if what not in self.failures:
            self.failures.append(what)

    def _is_over(self, alive: list[RankState]) -> bool:
        """Whether the launcher has ended, and its ranks with it, or with some grace."""
        if self.job.poll() is None:
            return False
        self._launcher_gone_at = self._launcher_gone_at or time.monotonic()
        return not alive or time.monotonic() - self._launcher_gone_at > LAUNCHER_GRACE_S

    def _has_ended(self) -> bool:
        """Whether nothing was left to interrupt: the launcher and its ranks had ended by themselves."""
        self._discover(at_once=True)
        processes = [*self.job.roots(), *(r.process for r in self._alive() if r.process)]
        if self.stopped or not self.job.roots() or any(map(is_alive, processes)):
            return False
        # Whoever started the launcher says how it ended, and may not have come to it yet.
        deadline = time.monotonic() + ENDED_S
        while self.job.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
        return self.job.poll() is not None

    def _is_due(self, alive: list[RankState]) -> bool:
        return bool(alive) and self.patience.due(time.monotonic())

    @property
    def left_running(self) -> bool:
        """Whether the job was found stuck, and stays as it is."""
        return self.stopped == "hang" and self.options.on_hang == "leave"

    def _timed_out(self) -> bool:
        return 0 < self.options.timeout_s < time.monotonic() - self._started

    def _went_too_far(self) -> bool:
        most = self.options.most_steps
        return most is not None and any(rank.steps > most for rank in self.ranks.values())

    def _last_look(self) -> None:
        """Whoever interrupts a job wants to know where its ranks stand; who interrupts a silence has waited long enough as well."""
        quiet_s = self.patience.quiet_s(time.monotonic())
        if self._alive() and not interrupts.hurried():
            try:
                self._say_where()
                if quiet_s > MIN_STALL_S:
                    self._interrupted_s = quiet_s
                    self.look()
                else:
                    self._capture()
            except KeyboardInterrupt:
                pass  # it was asked for again: what is missing of the snapshots is skipped
            except Exception as error:
                self._failed(error)

    def _say_where(self) -> None:
        if self._notices:
            self._notices.where(whereabouts(self._sought(rank) for rank in self._alive()))

    def _sought(self, rank: RankState) -> Sought:
        number = rank.directory.rank
        return Sought(
            rank=number,
            pid=rank.pid,
            alive=rank.process is not None,
            recorder=rank.directory.blackbox,
            socket=self.job.socket_dir / f"{number}.sock",
        )

    # -- what moves -------------------------------------------------------------------------------

    def _discover(self, *, at_once: bool = False) -> None:
        """Takes in ranks that have come since."""
        at_once = at_once or self._ending_since_ns is not None or self.job.poll() is not None
        for rank in self._discovery.search(at_once=at_once):
            if rank.process:
                self._deaths.add(rank.process)
                self._oom.note(rank.process.pid)
            self._progress()

    def _is_here(self, meta: dict[str, Any]) -> bool:
        """Whether the rank is on this machine."""
        return True

    def _feel_pulses(self) -> None:
        for rank in self.ranks.values():
            if rank.progress and rank.progress.advance():
                self._waiting.discard(rank.directory.rank)
                self._progress()

    def _progress(self) -> None:
        now = time.monotonic()
        self.suspicions.withdraw(self.patience.quiet_s(now))
        self.patience.progress(now, settled=self._settled())
        self._activity.forget()
        self._loops.forget()

    def _settled(self) -> bool:
        """Start-up and the first steps (compilation, allocation, connecting) are not the job's rhythm."""
        return any(rank.iterations > WARM_UP_STEPS for rank in self.ranks.values())

    def _watch_activity(self, alive: list[RankState]) -> None:
        """In a silence: ranks that compute, read or write move too, unless they spin in a collective."""
        now = time.monotonic()
        if self.patience.quiet_s(now) < QUIET_S:
            return
        if self._on_silence:
            self._on_silence()
            self._on_silence = None
        began = self._activity.sampled
        worked = self._activity.sample({r.directory.rank: r.process.pid for r in alive if r.process})
        if worked - self._may_spin():
            self.patience.stir(began, time.monotonic(), settled=self._settled())

    def _may_spin(self) -> set[int]:
        called = {n for n, r in self.ranks.items() if r.progress and r.progress.in_collective}
        return called | self._waiting

    def _note_deaths(self, seconds: float) -> None:
        for process, end in self._deaths.wait(seconds):
            for rank in self.ranks.values():
                if rank.process == process:
                    rank.end = end
                    self._discovery.look_everywhere()
            if self._ending_since_ns is None:
                self._feel_pulses()  # a rank that went on and ended since then withdraws it
                self._say_withdrawn(end)
                self.suspicions.drop()  # another silence begins
                self._progress()

    # -- a closer look ----------------------------------------------------------------------------

    def look(self, apart_s: float | None = None) -> Judgement:
        """Two captures some seconds apart, and if nothing moved in between, what costs more to see."""
        started = time.monotonic()
        if self._notices:
            self._notices.looking(self.patience.quiet_s(started))
        pair = self._pair(apart_s or self.options.looks_apart_s)
        moved = self._joined(pair)
        judgement, reason = judge(
            moved, nap_credit_s=self._nap_credit_s(), believes_world=self.options.believes_world
        )
        self._waiting = {m.rank for m in moved if m.waits_for_peers or m.spins}
        saw_work = judgement == "busy"
        if judgement == "still":
            judgement, reason = self._was_it_a_moment_ago(
                reason, {m.rank for m in moved if m.spins or m.is_lost}
            )
        judgement, reason = self._all_seen(judgement, reason)
        if judgement == "still" and (self._interrupted_s or math.inf) < self.patience.limit_s():
            judgement, reason = (
                "asleep",
                f"interrupted after {self._interrupted_s:.0f} s of silence; {reason}",
            )
        self.looks.append(
            Look(
                t_s=started - self._started,
                first=pair.first,
                second=pair.second,
                judgement=judgement,
                reason=reason,
                motions=[dict(vars(m)) for m in moved],
            )
        )
        self._after_look(judgement, moved, started, saw_work=saw_work)
        if self._notices and judgement in ("busy", "asleep"):
            at = at_work(self.directory, moved, pair.second)
            self._notices.quiet(self.patience.quiet_s(time.monotonic()), f"{reason} ({at})" if at else reason)
        if judgement == "still":
            self._answer(pair.second)
        return judgement

    def _joined(self, pair: Pair) -> list[Motion]:
        """The activity of all ranks between the two captures."""
        return joined(pair.stances, set(self.ranks), quiet_s=self.patience.quiet_s(time.monotonic()))

    def _all_seen(self, judgement: Judgement, reason: str) -> tuple[Judgement, str]:
        """The same, unless some of those who should have been looked at were not, or another role of the job has the say."""
        if judgement in ("still", "asleep") and (told := self._others()):
            judgement, reason = told
        if judgement == "still" and self.options.believes_world:
            coming = may_come(self.ranks.values(), self.patience.quiet_s(time.monotonic()))
            return ("asleep", coming) if coming else (judgement, reason)
        return judgement, reason

    def _others(self) -> tuple[Judgement, str] | None:
        if self._on_others is None or interrupts.hurried():
            return None
        ranks = {r.directory.rank: r.process.pid for r in self._alive() if r.process}
        try:
            return self._on_others(self.job.family(), ranks)
        except Exception as error:
            self._failed(error)
            return None

    def _pair(self, apart_s: float) -> Pair:
        """Two captures of the ranks here, and what each rank did in between."""
        first, before = self._capture(), self._usages()
        noted = {n: (r.progress.worked, r.progress.beside) for n, r in self.ranks.items() if r.progress}
        deadline = time.monotonic() + apart_s
        self._loops.begin({r.directory.rank: r for r in self._alive()}, first, but=self._may_spin())
        while time.monotonic() < deadline and self.job.poll() is None and not interrupts.hurried():
            self._note_deaths(min(POLL_S, apart_s))
            self._feel_pulses()
            self._watch_activity(self._alive())
            self._loops.sample()
        if interrupts.hurried():
            raise KeyboardInterrupt
        after = self._usages()
        self._activity.note(after)
        second = self._capture()
        self._feel_pulses()
        alive = self._alive()
        seen = {r.directory.rank: self._seen(r, noted, before, after) for r in alive}
        gpus = [self.captures.gpus(number) for number in (first, second)]
        found = stances([r.directory for r in alive], (first, second), seen, gpus)
        longest_s = self.patience.longest_s
        return Pair(
            first=first,
            second=second,
            stances=[self._loops.seen(s, (first, second), self._server, longest_s) for s in found],
        )

    def _server(self, rank: RankState, capture: int) -> WorkerServer:
        """The server that answers for the rank."""
        return self.captures.target(rank, capture).server

    def _answer(self, capture: int) -> None:
        """Takes the answer's captures. The verdict's needs are on disk; native stacks are for those who read on, and cost seconds."""
        self._judge()
        if self.stopped and self.options.thorough and not interrupts.hurried():
            capture_slow([self.captures.target(r, capture) for r in self._alive()])

    def _judge(self) -> None:
        """Ask for the verdict, as if the job ended now; a hang that is only suspected does not end it."""
        self.stopped = "hang"
        self.write()
        answer = self._on_stuck() if self._on_stuck else None
        if answer is None or self._is_final(answer):
            self.suspicions.drop()
            if self._notices and not self.left_running:
                self._notices.stopping(answer.says if answer else "")
            return
        self.stopped = None
        quiet_s = self.patience.quiet_s(time.monotonic())
        self.suspicions.suspect(answer.says, quiet_s, self._patience_s())

    def _is_final(self, answer: Answer) -> bool:
        """Whether the hang is proven, or has been suspected for as long as patience lasts, or nobody waits any longer."""
        if answer.certainty == "proven" or self._timed_out() or self._interrupted_s is not None:
            return True
        silent_s = self.patience.idle_s(time.monotonic())
        return self.options.on_hang != "stop-proven" and silent_s >= self._patience_s()

    def _patience_s(self) -> float:
        fixed_s = self.options.patience_s
        return self.patience.suspicion_s() if fixed_s is None else fixed_s

    def _say_withdrawn(self, end: End | None = None) -> None:
        """Unless what moved was a rank on its way out. `end`: of a rank, just now."""
        if not self.suspicions.unsaid:
            return
        raised = any(rank.directory.exception.exists() for rank in self.ranks.values())
        if raised or (end and end.signal):
            self.suspicions.drop()
        else:
            self.suspicions.confirm(at_once=end is not None)

    def _alive(self) -> list[RankState]:
        return [r for r in self.ranks.values() if r.end is None]

    def _strays(self) -> set[int]:
        """Processes of the job, as daemons, that descend from none of its launchers and ranks any more."""
        ranks = {r.process for r in self._alive() if r.process}
        return {p.pid for p in self.job.family() - with_children({*self.job.roots(), *ranks})}

    def _usages(self) -> dict[int, Usage | None]:
        return {r.directory.rank: usage(r.process.pid) for r in self._alive() if r.process}

    def _seen(
        self,
        rank: RankState,
        noted: dict[int, tuple[int, int]],
        before: dict[int, Usage | None],
        after: dict[int, Usage | None],
    ) -> Seen:
        number = rank.directory.rank
        events, beside = (0, 0)
        if rank.progress:
            worked, others = noted.get(number, (0, 0))
            events, beside = rank.progress.worked - worked, rank.progress.beside - others
        return Seen(
            before=before.get(number),
            after=after.get(number),
            events=events,
            beside=beside,
            offspring=self._activity.offspring(number),
            times=self.patience.times(),
        )

    def _was_it_a_moment_ago(self, reason: str, in_vain: set[int]) -> tuple[Judgement, str]:
        """Work that comes in bursts may fall between two captures: then the pause is no longer than its rhythm."""
        worked = self._worked(self._may_spin() | in_vain)
        self.patience.stood_since(max((t for t, _ in worked.values()), default=0.0))
        now = time.monotonic()
        if not worked or self.patience.idle_s(now) > self.patience.limit_s():
            return "still", reason
        rank = max(worked, key=lambda n: worked[n])
        moment, did = worked[rank]
        return "busy", f"rank {rank} {did} {now - moment:.0f} s ago"

    def _worked(self, but: set[int]) -> dict[int, tuple[float, str]]:
        """The last work of each rank in this silence: its time, and what it was; `but` are those whose work is none."""
        return {n: (t, self._activity.did[n]) for n, t in self._activity.worked.items() if n not in but}

    def _nap_credit_s(self) -> float:
        """Sleepers are waited for, but not for ever: what sleeps time and again only polls."""
        return max(NAP_S[1] - self.patience.quiet_s(time.monotonic()), 0.0)

    def _after_look(
        self, judgement: Judgement, moved: list[Motion], started: float, *, saw_work: bool
    ) -> None:
        now = time.monotonic()
        if judgement == "progress":
            self._progress()
        nap_s = max((m.nap_s for m in moved if not m.waits_for_peers), default=0.0)
        # Work that the samples show as well will be missed when it ends; a look alone has to be repeated.
        worked = self._worked(self._may_spin())
        in_sight = any(moment > started - MIN_STALL_S for moment, _ in worked.values())
        self.patience.looked(judgement, now, nap_s=nap_s, in_sight=in_sight, saw_work=saw_work)
        self.captures.forget(self.looks, self.ranks.values())

    def _capture(self) -> int:
        return self.captures.take(self._alive(), none_known=not self.ranks)

    # -- the end ----------------------------------------------------------------------------------

    def _end_everything(self) -> None:
        self._discover(at_once=True)  # due or not: a rank may have come, and gone, since the last time
        self._ending_since_ns = self._ending_since_ns or time.monotonic_ns()
        if self.stopped in ("hang", "timeout"):
            # With the number of the last look, whose deaths and errors from here on are our doing.
            capture_last([self.captures.target(r, self.captures.count) for r in self._alive()])
        ranks = [r.process for r in self.ranks.values() if r.process]
        self.left_alive = end_job(
            self.job, self.directory, ranks, self.launcher_speaks, self._note_the_last_deaths
        )

    def _note_the_last_deaths(self) -> None:
        """A main thread is a zombie a little before its process is: the other threads go last."""
        deadline = time.monotonic() + 1.0
        while any(r.end is None for r in self.ranks.values()) and time.monotonic() < deadline:
            self._note_deaths(POLL_S)

    def write(self) -> None:
        """watch.json and ends.json, as things stand, and the sources of the lines that the evidence names."""
        reported = self.job.reported_ends()
        times = Times(started_ns=self._started_ns, ending_since_ns=self._ending_since_ns)
        ends = {str(n): end_of(r, self.job, reported.get(n), times) for n, r in sorted(self.ranks.items())}
        write_json(self._home / self.directory.ends.name, ends)
        write_json(self._home / self.directory.watch.name, self._about())
        with contextlib.suppress(OSError):
            self._oom.write(self.directory, ends)
            keep_sources(self.directory)

    def close(self) -> None:
        self._deaths.close()

    def _about(self) -> dict[str, Any]:
        return {
            "started_mono_ns": self._started_ns,
            "launcher_exit_code": self.job.poll(),
            "ended_s": time.monotonic() - self._started,
            "last_progress_s": self.patience.moved - self._started,
            "longest_quiet_s": self.patience.longest_s,
            "longest_start_quiet_s": self.patience.longest_start_s,
            "patience_s": self.patience.limit_s(),
            "stopped": self.stopped,
            "ending_s": self._s(self._ending_since_ns) if self.stopped else None,
            "left_alive": sorted(p.pid for p in self.left_alive),
            "looks": [dict(vars(look)) for look in self.looks],
            "suspicions": [dict(vars(suspicion)) for suspicion in self.suspicions.all],
        }

    def _s(self, mono_ns: int | None) -> float | None:
        return None if mono_ns is None else (mono_ns - self._started_ns) / 1e9
