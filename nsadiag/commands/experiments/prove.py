"""`nsadiag prove`: whether a job computes on several ranks what it computes alone."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nsadiag.commands import output
from nsadiag.commands.experiments.check import CheckOptions, check_once
from nsadiag.commands.experiments.proof_lines import alone, ranks_of, with_batch
from nsadiag.commands.run import RunRequest, RunResult, check_request, name_of, run_once
from nsadiag.errors import EXIT_ENVIRONMENT, EXIT_FINDING, EXIT_HEALTHY, EXIT_INTERRUPTED, EXIT_USAGE
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir, write_json
from nsadiag.evidence.phrases import count
from nsadiag.evidence.proof import Asked
from nsadiag.evidence.rehearsal import PROOF

# `failed`: the job itself, before anything could be compared.
Answer = Literal["same", "differs", "not_comparable", "failed", "can't"]
MOVED, RUNS = 1e-6, 2  # the share by which inputs are moved, and how often
EXITS: dict[Answer, int] = {
    "same": EXIT_HEALTHY, "differs": EXIT_FINDING, "failed": EXIT_FINDING, "can't": EXIT_USAGE,
    "not_comparable": EXIT_ENVIRONMENT,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProveOptions:
    """Settings of a proof besides those of a run."""

    steps: int = 12
    real: bool = False  # launched as it is, not rehearsed
    batch_option: str = ""  # of the script: one process is given as many times its value as there are ranks


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
    """Runs the command on its ranks and alone. Raises NsadiagError before anything was started, never after."""
    check_request(request)
    output.need("numpy", "comparing two runs")
    ranks = ranks_of(request.command)
    single = with_batch(alone(request.command), options.batch_option, ranks)
    run = output.prepare(request.out, name_of(request.command), force=request.force)
    runner = Runner(dataclasses.replace(request, out=run.path, force=True), options)
    found = runner.proved(single)
    write_json(run.proof, found.to_json())
    return found


class Runner:
    """The runs of a proof, and their comparison."""

    def __init__(self, request: RunRequest, options: ProveOptions) -> None:
        assert request.out is not None
        self._request, self._options = request, options
        self._directory = request.out

    def proved(self, single: list[str]) -> Proved:
        """`single`: the command line for one process."""
        _, failed = self.launched(self._request, Asked(steps=self._options.steps))
        if failed is not None:
            return failed
        one, failed = self._alone(
            single, "alone", Asked(steps=self._options.steps, others=str(self._directory))
        )
        if failed is not None:
            return failed
        return self._compared(single, one)

    def _compared(self, single: list[str], one: Path) -> Proved:
        from nsadiag.experiments.prove.compare import prove, spread_of
        from nsadiag.experiments.prove.record import Run
        from nsadiag.experiments.prove.words import document

        ranks, other = Run(self._directory), Run(one)
        proof = prove(ranks, other)
        if proof.judgement == "differs":
            moved = [Run(self._moved(single, number)) for number in range(1, RUNS + 1)]
            proof = prove(ranks, other, spread_of(other, moved))
        told = document(proof, ranks)
        write_json(RunDir(path=self._directory).parity, told)
        self.judge()
        why = told["says"] or proof.why or _same(told)
        return Proved(directory=self._directory, answer=proof.judgement, why=why, document=told)

    def _moved(self, single: list[str], number: int) -> Path:
        asked = Asked(steps=self._options.steps, others=str(self._directory), moved=MOVED, seed=number)
        return self._alone(single, f"moved-{number}", asked)[0]

    def _alone(self, single: list[str], name: str, asked: Asked) -> tuple[Path, Proved | None]:
        """One process; why it cannot be had is why nothing can be compared."""
        path = self._directory / "proof" / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        request = dataclasses.replace(self._request, command=single, out=path, probes="none")
        result, failed = self.launched(request, asked)
        if failed is not None and not failed.interrupted:
            why = f"one process cannot run the command: {failed.why}"
            failed = dataclasses.replace(failed, answer="not_comparable", why=why, directory=self._directory)
        return result.directory, failed

    def launched(self, request: RunRequest, asked: Asked) -> tuple[RunResult, Proved | None]:
        """One run; why it is of no use, if it is of none."""
        env = {PROOF: asked.to_json()}
        if self._options.real:
            result = run_once(request, env=env)
            why = (
                ""
                if result.verdict is None or result.verdict.outcome in ("healthy", "slow", "wrong")
                else result.verdict.summary
            )
            answer: Answer = "failed"
        else:
            checked = check_once(request, CheckOptions(env=env))
            result, rehearsal = checked.run, checked.rehearsal
            why = "" if rehearsal.answer == "agreed" else f"{rehearsal.answer}: {rehearsal.why}"
            answer = "can't" if rehearsal.answer == "can't" else "failed"
        if not why:
            return result, None
        interrupted = result.exit_code == EXIT_INTERRUPTED
        return result, Proved(directory=result.directory, answer=answer, why=why, interrupted=interrupted)

    def judge(self) -> None:
        """parity.json is evidence now."""
        from nsadiag.analysis.verdict import judge_directory
        from nsadiag.reports.formats.registry import write_reports

        run = RunDir(path=self._directory)
        write_json(run.verdict, judge_directory(self._directory).to_json())
        write_reports(self._directory)


def _same(told: dict[str, Any]) -> str:
    largest = told["largest"] or 0.0
    return f"{told['cell']} compute what one process computes, in {count(told['steps'], 'step')} (largest difference: {largest:.1e})"


def shown(found: Proved) -> str:
    """The document for --json."""
    return json.dumps(found.to_json(), indent=1)
