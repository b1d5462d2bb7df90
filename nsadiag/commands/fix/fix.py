"""Candidates for the repair of a run, from templates or from others, each judged by the same proof."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nsadiag.commands.fix.origin import Origin, read_origin
from nsadiag.commands.fix.rehearsals import trials_of
from nsadiag.deadlines import programs
from nsadiag.deadlines.deadline import Deadline
from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY, MachineError, UsageError
from nsadiag.printing import note
from nsadiag.repair import refusals
from nsadiag.repair.change import Change
from nsadiag.repair.conduct import conduct
from nsadiag.repair.job import write_change
from nsadiag.repair.judgement import Bench, Judgement, Rehearse, Sketch, reason_in
from nsadiag.repair.patch import change_of, read_patch
from nsadiag.repair.record import Record
from nsadiag.repair.templates.registry import TEMPLATES
from nsadiag.repair.text import Module

MOST_CANDIDATES = 24
PROPOSE_S = 600.0
FAILED = ("differs", "raised", "wrong")


class Makes(Protocol):
    """A maker of trials of one job."""

    def rehearse(self, change: Change | None, ranks: int, seed: int) -> Record: ...

    def launch(self, change: Change, unwanted: threading.Event) -> str: ...

    @property
    def cold(self) -> Rehearse | None: ...


@dataclass(frozen=True, kw_only=True)
class FixRequest:
    """A parsed `nsadiag fix` line. `seconds`: of one trial; `budget_s`: after which no other candidate is begun."""

    path: Path
    patch: Path | None = None
    propose: str = ""
    write: bool = False
    seconds: float = 60.0
    budget_s: float = 900.0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A patch, who proposes it, and what it leaves out."""

    what: str
    change: Change
    cost: str = ""
    counting: Change | None = None  # the same, counting what it leaves out
    template: str = ""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate with its judgement."""

    candidate: Candidate
    judgement: Judgement


@dataclass(kw_only=True)
class Fixed:
    """The result: all that was tried, and what was left untried."""

    origin: Origin
    tried: list[Tried] = field(default_factory=list)
    untried: list[Candidate] = field(default_factory=list)
    seconds: float = 0.0
    written: bool = False

    @property
    def best(self) -> Tried | None:
        """The first that is fixed, else the first that agrees."""
        for level in ("fixed", "agrees"):
            found = next((tried for tried in self.tried if tried.judgement.level == level), None)
            if found:
                return found
        return None

    @property
    def exit_code(self) -> int:
        best = self.best
        return EXIT_HEALTHY if best and best.judgement.level == "fixed" else EXIT_FINDING


def fix_once(request: FixRequest) -> Fixed:
    """Raises NsadiagError where nothing could be tried; the user's files are touched by `--write` alone."""
    origin = read_origin(request.path)
    with trials_of(origin.job, request.seconds) as trials:
        return fixed_of(request, origin, trials)


def fixed_of(request: FixRequest, origin: Origin, trials: Makes) -> Fixed:
    """The same by trials of the caller's."""
    started = time.monotonic()
    candidates = _candidates(request, origin)
    if request.write:
        refusals.check_writable(
            [origin.job.folder / file for file in dict.fromkeys(f for f, _ in origin.sites)]
        )
    ranks = origin.job.ranks
    bench = Bench(rehearse=trials.rehearse, launch=trials.launch, ranks=ranks, cold=trials.cold)
    before = bench.plain(ranks)
    if before.answer not in FAILED and trials.cold is not None:
        # What ranks differ by is what they share when they are forked from one process.
        bench = Bench(rehearse=trials.cold, launch=trials.launch, ranks=ranks)
        before = bench.plain(ranks)
    if (unread := origin.job.selection.read_by(before.why)) is not None:
        raise MachineError(
            f"the job reads {unread}, which is too large to be copied for each trial",
            "give the job its data by an absolute path outside its folder",
        )
    if before.answer not in FAILED:
        raise MachineError(
            f"the rehearsal of the job as it is {_ended(before.answer)}: {before.why}",
            "a repair is judged by rehearsals, so the failure has to show in one: nsadiag check",
        )
    result = Fixed(origin=origin)
    _try(result, bench, candidates, Deadline(request.budget_s))
    result.seconds = time.monotonic() - started
    if request.write and result.exit_code == EXIT_HEALTHY and result.best:
        write(origin, result.best.candidate.change)
        result.written = True
    return result


def _try(result: Fixed, bench: Bench, candidates: list[Candidate], deadline: Deadline) -> None:
    """One rehearsal for each that its text does not refuse; the whole proof for those that pass it, until one is fixed."""
    weaker: list[tuple[Candidate, Sketch | None]] = []
    for number, candidate in enumerate(candidates):
        if deadline.has_passed() or number >= MOST_CANDIDATES:
            result.untried += candidates[number:]
            break
        note(f"nsadiag: trying: {candidate.what}")
        if not (said := conduct(candidate.change)).met:
            note(f"nsadiag: not fixed: {reason_in((said,))}")
            weaker.append((candidate, None))
            continue
        sketch = bench.sketched(candidate.change, candidate.cost, candidate.counting)
        if sketch.trial is not None and not sketch.is_promising:
            note(f"nsadiag: not fixed: {reason_in(sketch.rows)}")
            weaker.append((candidate, sketch))
            continue
        judgement = bench.proven(sketch)
        note(f"nsadiag: {judgement.level}{'; ' * bool(judgement.reason)}{judgement.reason}")
        result.tried.append(Tried(candidate=candidate, judgement=judgement))
        if judgement.level == "fixed":
            result.untried += candidates[number + 1 :]
            break
    for candidate, known in weaker:
        if result.best is None and not deadline.has_passed():
            judgement = bench.proven(
                known or bench.sketched(candidate.change, candidate.cost, candidate.counting)
            )
        else:
            judgement = Judgement(level="nothing", rows=known.rows if known else (conduct(candidate.change),))
        result.tried.append(Tried(candidate=candidate, judgement=judgement))


def _ended(answer: str) -> str:
    return {"agreed": "agreed", "undecided": "was undecided", "can't": "can't be made"}.get(answer, answer)


def write(origin: Origin, change: Change) -> None:
    """Applies a patch to the user's files. Raises NsadiagError, before anything is written, where they are not as they were."""
    paths = [origin.job.folder / file.path for file in change.files]
    refusals.check_writable([path for path in paths if path.exists()])
    write_change(origin.job, change)


def _candidates(request: FixRequest, origin: Origin) -> list[Candidate]:
    if request.patch is not None and request.propose:
        raise UsageError(
            "--patch and --propose are both given", "judge one patch, or let a command propose some"
        )
    if request.patch is not None:
        text = read_patch(request.patch)
        return [Candidate(what=str(request.patch), change=change_of(origin.job, text))]
    return [*(_proposed(request.propose, origin) if request.propose else ()), *_from_templates(origin)]


def _from_templates(origin: Origin) -> list[Candidate]:
    """In the order in which the verdict names their lines; at one line in that of the templates."""
    found: dict[tuple[str, str], tuple[bool, int, int, Candidate]] = {}
    places = {site: number for number, site in enumerate(origin.sites)}
    for file in dict.fromkeys(file for file, _ in origin.sites):
        text = origin.job.sources[file]
        lines = tuple(line for path, line in origin.sites if path == file)
        module = Module(text, lines)
        for number, template in enumerate(TEMPLATES):
            if template.classes and origin.verdict.cls not in template.classes:
                continue
            for proposal in template.propose(module):
                lines_of = ((file, line) for line in (proposal.line, proposal.branch))
                at = min(places.get(named, len(places)) for named in lines_of)
                candidate = Candidate(
                    what=proposal.what,
                    change=Change.of({file: text}, {file: proposal.text}),
                    cost=proposal.cost,
                    counting=Change.of({file: text}, {file: proposal.counting})
                    if proposal.counting
                    else None,
                    template=template.name,
                )
                found.setdefault((file, proposal.text), (proposal.is_guess, at, number, candidate))
    return [candidate for *_, candidate in sorted(found.values(), key=lambda each: each[:3])]


def document_for_model(origin: Origin) -> dict[str, object]:
    """The input of a proposer: the verdict, the lines, and the sources."""
    return {
        "verdict": origin.verdict.to_json(),
        "lines": [{"file": file, "line": line} for file, line in origin.sites],
        "sources": dict(origin.job.sources),
        "answer": "one unified diff or several, separated by lines of ---8<---; paths as in sources",
    }


def _words(command: str) -> list[str]:
    """Raises UsageError for what is no command line."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--propose: {command}: {error}", "quote it as for a shell") from None
    if not words:
        raise UsageError("--propose names no command", "it reads a document on stdin and prints diffs")
    return words


def _proposed(command: str, origin: Origin) -> Iterator[Candidate]:
    """The diffs of a command of the user's; one that does not apply is passed over with a line."""
    words = _words(command)
    text = json.dumps(document_for_model(origin))
    try:
        done = programs.run(words, seconds=PROPOSE_S, text=text)
    except (OSError, TimeoutError) as error:
        raise MachineError(f"--propose: {error}", "it reads a document on stdin and prints diffs") from None
    if done.returncode:
        raise MachineError(
            f"--propose: {words[0]} ended with code {done.returncode}: {done.stderr.strip()[-200:]}"
        )
    for number, diff in enumerate(filter(str.strip, done.stdout.split("---8<---\n")), 1):
        try:
            yield Candidate(what=f"proposal {number} of {words[0]}", change=change_of(origin.job, diff))
        except UsageError as error:
            note(f"nsadiag: proposal {number} of {words[0]} is left out: {error.message}")
