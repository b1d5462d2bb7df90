"""`nsadiag shrink`: a failing run, or cell of a matrix, cut down to a script that anyone can run."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.commands import output
from nsadiag.commands.experiments.targets import Origin, find_origin, target_of
from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY, EXIT_INTERRUPTED
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir, make_private_dir, write_json, write_private
from nsadiag.evidence.records import Verdict, Where
from nsadiag.evidence.secrets.masking import hide
from nsadiag.experiments.axes import simplest
from nsadiag.experiments.rewriting.program import Program
from nsadiag.experiments.shrink import (
    Bench,
    Lost,
    Shrunk,
    Target,
    further_and_further_back,
    shrink,
    third_parties,
)
from nsadiag.experiments.trial import Job, Pace, Slots, Trial, Wanted, slots, waited_for
from nsadiag.printing import note
from nsadiag.version import __version__

CONFIRMATIONS = 2
TRIES = 5  # how many are run afresh before giving up
# For whoever gets the script: `python repro.py` is all that it takes.
STARTS_ITSELF = """import os, sys
if "RANK" not in os.environ:  # started by hand: become torchrun, which starts the ranks
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()
    os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])

"""
FUTURE = "from __future__ import"
WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class ShrinkRequest:
    """A parsed `nsadiag shrink` line."""

    path: Path
    budget_s: float = 150.0
    slots: int = 2
    out: Path | None = None
    force: bool = False
    line: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShrinkResult:
    """The result of shrinking."""

    directory: Path
    document: dict[str, Any]
    exit_code: int


def plan(request: ShrinkRequest) -> dict[str, Any]:
    """The target of the shrinking, without a run."""
    origin = find_origin(request.path)
    target = target_of(origin.job, origin.verdict)
    return {
        "script": str(target.script),
        "command": target.job.words(),
        "wanted": dataclasses.asdict(Wanted.of(origin.verdict)),
        "axes": list(origin.factors),
    }


def shown_plan(request: ShrinkRequest, *, as_json: bool) -> str:
    """The plan for stdout."""
    planned = plan(request)
    if as_json:
        return json.dumps(planned, indent=1)
    kept = ", ".join(f"{k} {v}" for k, v in planned["wanted"].items() if v)
    axes = f"axes first: {', '.join(planned['axes'])}\n" if planned["axes"] else ""
    return f"{axes}script: {planned['script']}\ncommand: {shlex.join(planned['command'])}\nto be kept: {kept}"


def shown(result: ShrinkResult, *, as_json: bool) -> str:
    """The result for stdout."""
    from nsadiag.reports.shrink import lines

    if as_json:
        return json.dumps(result.document, indent=1)
    return "\n".join(lines(result.document, result.directory))


def run_shrink(request: ShrinkRequest) -> ShrinkResult:
    """Cuts down until nothing can go or time is up, then runs the result afresh; shrink.json says what came of it."""
    origin, started = find_origin(request.path), time.monotonic()
    target = target_of(origin.job, origin.verdict)
    hide(origin.job.env, origin.job.words())
    run = output.prepare(request.out, f"shrink-{target.script.stem}", force=request.force)
    about: dict[str, Any] = {
        "kind": "shrink",
        "name": f"shrink-{target.script.stem}",
        "command": list(request.line),
        "started_at": output.now(),
    }
    output.write_run(run, **about)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "shrink",
        "name": about["name"],
        "of": str(request.path),
        "conclusion": None,
        "signature_before": origin.verdict.signature,
        "lines_before": target.script.read_text(errors="replace").count("\n"),
        "notes": [],
        "trials": 0,
        "machine": output.machine(),
    }
    code = EXIT_FINDING
    try:
        _cut(origin, target, request, run, document, deadline=started + request.budget_s)
        code = EXIT_HEALTHY if document["conclusion"] == "kept" else EXIT_FINDING
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    finally:
        shutil.rmtree(run.path / "trials", ignore_errors=True)
        document["seconds"] = round(time.monotonic() - started, 1)
        _finish(run, about, document)
    return ShrinkResult(directory=run.path, document=document, exit_code=code)


def _finish(run: RunDir, about: dict[str, Any], document: dict[str, Any]) -> None:
    from nsadiag.reports.shrink import markdown, summary

    document["summary"] = summary(document)
    write_json(run.path / "shrink.json", document)
    write_private(run.report_md, markdown(document))
    output.write_run(run, **about, ended_at=output.now())


def _cut(
    origin: Origin,
    target: Target,
    request: ShrinkRequest,
    run: RunDir,
    document: dict[str, Any],
    *,
    deadline: float,
) -> None:
    folder = run.path.resolve() / "trials"
    notes: list[str] = document["notes"]
    with slots(request.slots, run.path / "nodes") as opened:
        if not target.job.launcher:
            opened.warm_up(target.job.env)
        bench: Bench | None = None
        try:
            if origin.matrix and origin.factors:
                job, verdict, said = simplest(
                    origin.matrix,
                    origin.factors,
                    origin.job,
                    origin.verdict,
                    opened,
                    folder / "axes",
                    note=_say,
                )
                notes += said
                target = target_of(job, verdict)
            bench = Bench(target, opened, folder, _say)
            shrunk = shrink(bench, deadline=deadline)
        except Lost as lost:
            document |= {"conclusion": "lost", "why": str(lost), "trials": bench.trials if bench else 0}
            return
        notes += shrunk.notes
        document |= {"trials": shrunk.trials, "any_parameter": bench.wanted.any_parameter}
        _confirm(shrunk, bench, opened, run, document)


def _say(text: str) -> None:
    note(text)


# -- the result, run afresh -----------------------------------------------------------------------


def _confirm(shrunk: Shrunk, bench: Bench, opened: Slots, run: RunDir, document: dict[str, Any]) -> None:
    """The smallest that shows the failure in every fresh run, of new processes in an empty directory."""
    target, verdict = bench.target, shrunk.verdict
    if not reads_arguments(shrunk.program):
        target = dataclasses.replace(target, job=dataclasses.replace(target.job, argv=target.job.argv[:1]))
    script = run.path / target.script.name
    needs = sorted(third_parties(shrunk.program))
    if needs:
        document["notes"].append(f"needs {', '.join(needs)} besides torch")
    candidates = further_and_further_back(shrunk.history, TRIES)
    for turn, program in enumerate(candidates):
        source = described(
            program, verdict, target.job, script.name, len(target.script.read_text().splitlines())
        )
        write_private(script, source)
        seen = _afresh(script, target.job, opened, run.path / "confirmed" / str(turn + 1))
        held = [trial for trial in seen if bench.is_same(trial)]
        if held:
            verdict = held[0].verdict
            # Said again of a fresh run: the trials before had other line numbers and less patience.
            source = described(program, verdict, target.job, script.name, len(target.script.read_text().splitlines()), offset=False)  # fmt: skip
            write_private(script, source)
        document |= {
            "conclusion": "kept" if len(held) == len(seen) else "flaky" if held else "lost",
            "why": "; ".join(
                sorted({f"{t.verdict.outcome} ({t.verdict.cls})" for t in seen if t not in held})
            ),
            "confirmed": len(held),
            "confirmations": len(seen),
            "script": script.name,
            "run": run_line(target.job, script.name),
            "source": source,
            "lines": len(source.splitlines()),
            "signature": verdict.signature,
            "outcome": verdict.outcome,
            "class": verdict.cls,
            "guilty_ranks": list(verdict.guilty_ranks),
        }
        if len(held) == len(seen):
            return
        _say("not every fresh run showed it: some steps back")


def _afresh(script: Path, job: Job, opened: Slots, folder: Path) -> list[Trial]:
    with tempfile.TemporaryDirectory(prefix="nsadiag-shrunk-") as empty:
        there = dataclasses.replace(
            job, argv=(str(script.resolve()), *job.argv[1:]), launcher=(sys.executable,), cwd=Path(empty)
        )
        pace = Pace(timeout_s=180.0)
        runs = [
            opened.submit(there, make_private_dir(folder.resolve()) / str(n + 1), pace)
            for n in range(CONFIRMATIONS)
        ]
        return [waited_for(one) for one in runs]


def reads_arguments(program: Program) -> bool:
    """Whether the words behind the script's name mean anything to it."""
    text = program.text()
    return any(word in text for word in ("argv", "argparse", "parse_args", "click", "typer", "fire", "hydra"))


def run_line(job: Job, name: str) -> str:
    """The command line that starts the script."""
    variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(job.env.items()))
    words = shlex.join([name, *job.argv[1:]])
    return " ".join(part for part in (variables, "python", words) if part)


def described(
    program: Program, verdict: Verdict, job: Job, name: str, lines_before: int, *, offset: bool = True
) -> str:
    """The script with a docstring that says what happens. `offset`: the verdict's lines are those without docstring."""
    body, above = self_starting(program.text(), job)
    where = verdict.where or Where()
    place = next(
        (n for n, row in enumerate(body.splitlines(), 1) if where.code and row.strip() == where.code), None
    )

    def docstring(down: int) -> str:
        """`down`: how many lines of docstring stand above the rest."""
        ranks = " and ".join(map(str, verdict.guilty_ranks))
        who = f", rank{'s' * (len(verdict.guilty_ranks) > 1)} {ranks}" if verdict.guilty_ranks else ""
        line = f", line {place + down}" if place else ""
        summary = _moved(verdict.summary, down + above) if offset else verdict.summary
        made = (
            f"Seen with torch {_version('torch')}, Python {platform.python_version()}. "
            f"Cut down from {lines_before} lines by nsadiag {__version__}, signature {verdict.signature}."
        )
        parts = (
            f"{verdict.outcome.capitalize()}: {verdict.cls}{who}{line}.",
            f"{textwrap.fill(summary, WIDTH)}\n\nRun: {run_line(job, name)}",
            textwrap.fill(made, WIDTH),
        )
        return '"""' + _quoted("\n".join(parts)) + '\n"""\n\n'

    # Digits of a line's number hardly ever change how many lines the docstring takes: the second time they are right.
    return docstring(docstring(10).count("\n")) + body


def self_starting(body: str, job: Job) -> tuple[str, int]:
    """The program, which starts its ranks where torchrun has not; and the number of lines that this put above the rest."""
    if job.launcher:
        return body, 0
    start = STARTS_ITSELF.format(ranks=job.world_size)
    lines = body.splitlines(keepends=True)
    # Imports of the future come before everything else.
    futures = [line for line in lines if line.startswith(FUTURE)]
    rest = [line for line in lines if not line.startswith(FUTURE)]
    return "".join([*futures, start, *rest]), start.count("\n")


def _moved(text: str, down: int) -> str:
    """Places in a sentence, `train.py:12`, so many lines further down."""
    return re.sub(r"(\.py:)(\d+)", lambda m: f"{m[1]}{int(m[2]) + down}", text)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _version(package: str) -> str:
    return output.versions().get(package, "?")


def most_slots() -> int:
    """Ranks mostly wait, so two jobs of two ranks fit on two cores."""
    return max(
        2,
        min(
            8,
            (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2) // 2,
        ),
    )
