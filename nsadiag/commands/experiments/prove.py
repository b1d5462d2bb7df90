"""`nsadiag prove`: whether a job computes on several ranks what it computes alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nsadiag.commands import output
from nsadiag.commands.experiments.check import CheckOptions, Follower, check_once
from nsadiag.commands.experiments.proof_lines import alone, ranks_of, with_batch
from nsadiag.commands.run import RunRequest, RunResult, check_request, name_of, run_once
from nsadiag.errors import (
    EXIT_ENVIRONMENT,
    EXIT_FINDING,
    EXIT_HEALTHY,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    UsageError,
)
from nsadiag.evidence.documents.files import tail_of
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir, write_json
from nsadiag.evidence.phrases import count
from nsadiag.evidence.rehearsal import PROOF
from nsadiag.evidence.rehearsal.proof import Asked, asked_in
from nsadiag.experiments.commits import Worktree, commit_of, top_of, worktree

if TYPE_CHECKING:
    from nsadiag.evidence.records import Verdict
    from nsadiag.experiments.prove.compare import Proof
    from nsadiag.experiments.prove.record import Run

# `wrong`: by a relation among the ranks themselves, where the comparison finds nothing; `failed`: the job itself, before
# anything could be compared.
Answer = Literal["same", "differs", "wrong", "not_comparable", "failed", "can't"]
WITHOUT = "the same job without a stop"
PROBES = "light,invariants"  # of the ranks: what they show among themselves needs no other run
COMPLETED = ("healthy", "slow", "wrong")
UNFIT = {"can't": "can't", "undecided": "not_comparable"}  # of a rehearsal
MOVED, RUNS = 1e-6, 2  # the share by which inputs are moved, and how often
EXITS: dict[Answer, int] = {
    "same": EXIT_HEALTHY, "differs": EXIT_FINDING, "wrong": EXIT_FINDING, "failed": EXIT_FINDING, "can't": EXIT_USAGE,
    "not_comparable": EXIT_ENVIRONMENT,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProveOptions:
    """Settings of a proof besides those of a run."""

    steps: int = 12
    real: bool = False  # launched as it is, not rehearsed
    batch_option: str = ""  # of the script: one process is given as many times its value as there are ranks
    resume: bool = False  # compared is the same job, stopped after a checkpoint and started again
    against: str = ""  # compared is an earlier proof's run, or what this commit computes


@dataclass(frozen=True, kw_only=True)
class Proved:
    """The answer, and the run directory of the ranks; those of the other runs lie in it."""

    directory: Path
    answer: Answer
    why: str
    document: dict[str, Any] = dataclasses.field(default_factory=dict)
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.interrupted else EXITS[self.answer]

    def to_json(self) -> dict[str, Any]:
        """proof.json."""
        about = {"answer": self.answer, "why": self.why, "directory": str(self.directory)}
        return {"schema_version": SCHEMA_VERSION, **self.document, **about}

    def lines(self) -> list[str]:
        """The answer, as a terminal shows it."""
        name = self.answer.replace("_", " ")
        return [f"{name}: {self.why}", *(f"  {each}" for each in self.document.get("remarks", ()))]


def prove_once(request: RunRequest, options: ProveOptions) -> Proved:
    """Runs the command on its ranks, and what it is compared with. Raises NsadiagError before anything was started, never after."""
    check_request(request)
    output.need("numpy", "comparing two runs")
    if options.resume and (options.against or options.real):
        raise UsageError("--resume goes with neither --against nor --real", "a restart is rehearsed, where what it saves goes away")  # fmt: skip
    single = with_batch(alone(request.command), options.batch_option, ranks_of(request.command))
    with _good(options.against) as good:
        run = output.prepare(request.out, name_of(request.command), force=request.force)
        runner = Runner(dataclasses.replace(request, out=run.path, force=True), options)
        found = (
            runner.resumed() if options.resume else runner.against(good) if good else runner.proved(single)
        )
    write_json(run.proof, found.to_json())
    return found


@contextlib.contextmanager
def _good(name: str) -> Iterator[Path | Worktree | None]:
    """The run directory of that name, or a checkout of the commit. Raises UsageError."""
    if not name or (Path(name) / "run.json").exists():
        yield Path(name) if name else None
        return
    top = top_of(Path.cwd())
    with worktree(top) as checkout:
        checkout.go_to(commit_of(top, name))
        yield checkout


class Runner:
    """The runs of a proof, and their comparison."""

    def __init__(self, request: RunRequest, options: ProveOptions) -> None:
        assert request.out is not None
        self._request, self._options = request, options
        self._directory = request.out

    def proved(self, single: list[str]) -> Proved:
        """`single`: the command line for one process."""
        from nsadiag.experiments.prove.compare import prove
        from nsadiag.experiments.prove.record import Run

        alone = self._follower(single, "alone", Asked(steps=self._options.steps))
        if (failed := self._ranks(alone)) is not None:
            return failed
        one, failed = self._alone(alone)
        if failed is not None:
            return failed
        ranks, other = Run(self._directory), Run(one)
        proof, found = prove(ranks, other), None
        if proof.judgement == "differs":
            proof, found = self._confirmed(proof, ranks, other, single)
        return self._told(proof, "one process", found)

    def _confirmed(
        self, proof: Proof, ranks: Run, other: Run, single: list[str]
    ) -> tuple[Proof, tuple[str, str] | None]:
        """By how far two runs drift apart that differ by nothing else; and the line at which what differs begins."""
        from nsadiag.experiments.prove.compare import prove, spread_of
        from nsadiag.experiments.prove.record import Run

        asked = [Asked(steps=self._options.steps, moved=MOVED, seed=seed) for seed in range(1, RUNS + 1)]
        moved = [self._follower(single, f"moved-{each.seed}", each) for each in asked]
        found = self._traced(proof, single, moved)
        spread = spread_of(other, [Run(self._alone(each)[0]) for each in moved])
        known, proof = proof.steps, prove(ranks, other, spread)
        if proof.judgement == "differs" and proof.steps != known:
            found = self._traced(proof, single)
        return proof, found if proof.judgement == "differs" else None

    def _traced(
        self, proof: Proof, single: list[str], following: Sequence[Follower] = ()
    ) -> tuple[str, str] | None:
        """Both once more: what each line makes in the step that differs, and the line at which they part."""
        from nsadiag.experiments.prove.cause import cause_of
        from nsadiag.experiments.prove.record import Run
        from nsadiag.experiments.prove.statements import Statements

        name = "lines" if following else "lines-later"
        asked = Asked(steps=proof.steps + 2, traced=proof.steps + 1)
        alone = self._follower(single, f"{name}-alone", asked)
        request = dataclasses.replace(self._request, out=self._beside(name), probes="none")
        ranks, failed = self.launched(request, asked, beside=(alone, *following))
        if failed is not None:
            return None
        one, failed = self._alone(alone)
        if failed is not None:
            return None
        return cause_of(proof, Statements(Run(ranks.directory), Run(one), proof.steps))

    def against(self, good: Path | Worktree) -> Proved:
        """Beside an earlier proof's run, or what another commit computes."""
        from nsadiag.experiments.prove.record import Run
        from nsadiag.experiments.prove.versions import against

        if (failed := self._ranks()) is not None:
            return failed
        if isinstance(good, Path):
            return self._told(against(Run(self._directory), Run(good)), good.name)
        command = [good.moved(word) for word in self._request.command]
        request = dataclasses.replace(self._request, command=command, out=self._beside("good"), probes="none")
        cwd = Path(good.moved(str(Path.cwd().resolve())))
        result, failed = self.launched(
            request, Asked(steps=self._options.steps), cwd=cwd, env=good.environment()
        )
        if failed is not None:
            return self._refused(failed, f"{self._options.against} fails", self._options.against)
        return self._told(against(Run(self._directory), Run(result.directory)), self._options.against)

    def resumed(self) -> Proved:
        """Stopped after the first state that it saves, and started again, beside the same in one go."""
        from nsadiag.experiments.prove.compare import Proof
        from nsadiag.experiments.prove.record import Run
        from nsadiag.experiments.prove.versions import resumed, saved_at

        steps = self._options.steps
        if (failed := self._ranks()) is not None:
            return failed
        whole = Run(self._directory)
        stop = saved_at(whole)
        if stop is None:
            why = f"nothing was saved by torch.save with two steps behind it, in {count(whole.steps, 'step')} (--steps N for more)"  # fmt: skip
            return self._told(Proof(judgement="not_comparable", why=why), WITHOUT)
        with _lasting() as room:
            for name, asked in (
                ("stopped", Asked(steps=steps, stop=stop)),
                ("again", Asked(steps=steps - stop)),
            ):
                request = dataclasses.replace(self._request, out=self._beside(name), probes="none")
                result, failed = self.launched(request, asked, room=room)
                if failed is not None:
                    why = f"{'the second start' if name == 'again' else name}: {failed.why}"
                    return dataclasses.replace(failed, why=why)
        return self._told(resumed(Run(result.directory), whole, stop), WITHOUT)

    def _ranks(self, *following: Follower) -> Proved | None:
        """The command on all its ranks; why it is of no use, if it is of none."""
        request = dataclasses.replace(self._request, probes=PROBES)
        _, failed = self.launched(request, Asked(steps=self._options.steps), beside=following)
        if failed is None or failed.interrupted or failed.answer != "not_comparable":
            return failed
        return self._refused(failed, "the job", "anything")

    def _refused(self, failed: Proved, says: str, control: str) -> Proved:
        """The run that it was to be compared with is of no use."""
        from nsadiag.experiments.prove.compare import Proof

        if failed.interrupted:
            return dataclasses.replace(failed, directory=self._directory)
        return self._told(Proof(judgement="not_comparable", why=f"{says}: {failed.why}"), control)

    def _told(self, proof: Proof, control: str, line: tuple[str, str] | None = None) -> Proved:
        from nsadiag.experiments.prove.lines import with_line
        from nsadiag.experiments.prove.record import Run
        from nsadiag.experiments.prove.words import document

        told = document(proof, Run(self._directory), control=control)
        if proof.judgement == "differs":
            told |= with_line(told, proof, self._directory, line)
        write_json(RunDir(path=self._directory).parity, told)
        verdict = self.judge()
        why = told["says"] or proof.why or _same(told)
        answer: Answer = proof.judgement
        if answer != "differs" and verdict is not None and verdict.outcome == "wrong":
            told["remarks"] = [*told["remarks"], f"beside {control}: {answer.replace('_', ' ')}: {why}"]
            answer, why = "wrong", verdict.summary
        return Proved(directory=self._directory, answer=answer, why=why, document=told)

    def _beside(self, name: str) -> Path:
        return self._directory / "proof" / name

    def _follower(self, single: list[str], name: str, asked: Asked) -> Follower:
        """One process in the place of the ranks, whose record is there by then."""
        asked = dataclasses.replace(asked, others=str(self._directory))
        return Follower(command=single, out=self._beside(name), env={PROOF: asked.to_json()})

    def _alone(self, one: Follower) -> tuple[Path, Proved | None]:
        """Its run directory: as it followed the ranks, else of a launch of its own; why it cannot be had is why nothing can be compared."""
        if tail_of(one.ended, 8) == "0":
            return one.out, None
        shutil.rmtree(one.out, ignore_errors=True)
        request = dataclasses.replace(self._request, command=one.command, out=one.out, probes="none")
        result, failed = self.launched(request, asked_in(one.env[PROOF]))
        if failed is not None:
            failed = self._refused(failed, "one process cannot run the command", "one process")
        return result.directory, failed

    def launched(
        self, request: RunRequest, asked: Asked, *, beside: Sequence[Follower] = (), room: Path | None = None, cwd: Path | None = None, env: Mapping[str, str] | None = None,
    ) -> tuple[RunResult, Proved | None]:  # fmt: skip
        """One run; why it is of no use, if it is of none."""
        added, answer = {PROOF: asked.to_json(), **(env or {})}, "failed"
        if self._options.real:
            result = run_once(request, env=added, cwd=cwd)
            verdict = result.verdict
            why = "" if verdict is None or verdict.outcome in COMPLETED else verdict.summary
        else:
            request = dataclasses.replace(request, timeout_s=request.timeout_s * (1 + len(beside)))
            options = CheckOptions(env=added, room=room, cwd=cwd, beside=tuple(beside))
            checked = check_once(request, options)
            result, rehearsal = checked.run, checked.rehearsal
            why = "" if rehearsal.answer == "agreed" else f"{rehearsal.answer}: {rehearsal.why}"
            answer = UNFIT.get(rehearsal.answer, "failed")
            if not why and room is not None and not rehearsal.isolation.files_apart:
                why = f"what it saves cannot be kept apart: {rehearsal.isolation.files}"
        if not why or came_to_the_end(result.directory, asked):
            return result, None
        interrupted = result.exit_code == EXIT_INTERRUPTED
        return result, Proved(directory=result.directory, answer=answer, why=why, interrupted=interrupted)  # type: ignore[arg-type]

    def judge(self) -> Verdict | None:
        """The verdict on the ranks' run, of which parity.json is evidence now."""
        from nsadiag.analysis.verdict import judge_directory
        from nsadiag.reports.formats.registry import write_reports

        run = RunDir(path=self._directory)
        verdict = judge_directory(self._directory)
        write_json(run.verdict, verdict.to_json())
        write_reports(self._directory)
        return verdict


def came_to_the_end(directory: Path, asked: Asked) -> bool:
    """Whether a rank ended as it was asked to, while others make fewer steps: what follows is no failure of the job's."""
    from nsadiag.experiments.prove.record import Run

    ends = [row.step for rank in Run(directory).ranks for row in rank.all_of("done")]
    return any(step == (asked.stop or asked.steps) for step in ends)


@contextlib.contextmanager
def _lasting() -> Iterator[Path]:
    """A directory in memory, on which an overlay can lie where /tmp is none of its own."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="nsadiag-room-", dir=memory if memory.is_dir() else None) as room:
        yield Path(room)


def _same(told: dict[str, Any]) -> str:
    largest = told["largest"] or 0.0
    return f"{told['cell']} compute what {told['control']} computes, in {count(told['steps'], 'step')} (largest difference: {largest:.1e})"


def shown(found: Proved) -> str:
    """The document for --json."""
    return json.dumps(found.to_json(), indent=1)
