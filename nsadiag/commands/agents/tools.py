"""Answers for a coding agent: short, as JSON, each fact with an id that `evidence` resolves.

Texts come from a job's own files, and so from whoever wrote its code and its data.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsadiag.deadlines import programs
from nsadiag.errors import NsadiagError, UsageError
from nsadiag.evidence.records import Place, Verdict, Where
from nsadiag.printing import cleaned, one_line
from nsadiag.reports import RunReport, load_report

MOST_CHARACTERS = 4400  # of a verdict: about 1,200 tokens
MOST_RECORD = 3000
SUMMARY, CLAIM, CODE = 600, 220, 200
MOST_FACTS, MOST_RULED_OUT, MOST_GAPS = 8, 4, 3
SECONDS = 600.0  # for a job that is attached to or run
STDERR_BYTES = 65536  # of a command's, where its job's output is: the last ones
STOP_S = 30.0  # for a command past its limit to stop its job


def verdict(directory: str = "artifacts/latest") -> str:
    """The verdict of a run directory: class, guilty ranks, line, fix, and facts with ids (e1, e2, ...) for `evidence`."""
    return _shown(_short(_run(directory)))


def evidence(id: str, directory: str = "artifacts/latest") -> str:
    """The record behind one fact of a verdict, by its id (e1), with the file and the place in it."""
    run = _run(directory)
    items = _verdict(run).evidence
    number = int(id[1:]) if id[:1] == "e" and id[1:].isdigit() else 0
    if not 0 < number <= len(items):
        raise UsageError(f"there is no fact {id!r}", f"this verdict has e1 to e{len(items)}")
    from nsadiag.reports.pictures.records import cited

    item = items[number - 1]
    record = cited(run).get(item.source, "")
    found = {"claim": one_line(item.claim), "source": one_line(item.source), "record": record[:MOST_RECORD]}
    return _shown({key: value for key, value in found.items() if value})


def code(directory: str = "artifacts/latest") -> str:
    """The source around the guilty line, the peers' line and the branch on which they diverged, with who is where."""
    from nsadiag.reports.pictures.view import view_of

    pieces = []
    for snippet in view_of(_run(directory)).snippets:
        lines = [
            f"{line.number:>5} {line.text}" + (f"   # <- {', '.join(line.marks)}" if line.marks else "")
            for line in snippet.lines
        ]
        pieces.append("\n".join([snippet.file, *lines]))
    return "\n\n".join(pieces) or "no source was kept with this run"


def compare(a: str, b: str) -> str:
    """The differences between two runs: environment, versions, settings, verdict, timing, parameters."""
    from nsadiag.commands import diff

    rows = [row.to_json() for row in diff.rows_of(Path(a), Path(b)) if row.differs]
    kept = list(rows)
    while kept and len(_shown({"differs": kept})) > MOST_CHARACTERS:
        kept.pop()
    left_out = {"left_out": len(rows) - len(kept)} if len(kept) < len(rows) else {}
    return _shown({"differs": kept, **left_out})


def runs(folder: str = "artifacts") -> str:
    """The runs in a folder, newest first, with outcome, class and guilty ranks."""
    from nsadiag.commands import runs as listing
    from nsadiag.reports import history

    found = history.runs(listing.existing(Path(folder)))[:20]
    return "\n".join(listing.lines(found)) or f"no run in {folder}"


def attach(pid: int) -> str:
    """Judges a job that runs or hangs now, by the pid of its launcher or of a rank; the job is left as it is."""
    return _judged("attach", "attach", [str(int(pid))])


def run(command: list[str], timeout: float = 300.0) -> str:
    """Runs a launcher line (a list of words) under nsadiag, ends it if it hangs, and gives the verdict."""
    from nsadiag.commands.run import name_of

    return _judged(
        "run", name_of(command) if command else "run", ["--timeout", _limit(timeout), "--", *command]
    )


def check(command: list[str], timeout: float = 60.0) -> str:
    """Rehearses a launcher line (a list of words) on this machine's CPUs: each call that communicates is compared with its peers' before it is made.

    Seconds, no GPU, and nothing hangs: for a change that has just been made. The answer is agreed, differs, raised, undecided or can't.
    """
    document = json.loads(_output(["check", "--seconds", _limit(timeout), "--", *command]))
    run_ = _run(document["directory"])
    found = run_.rehearsal
    if found is None:
        raise NsadiagError(f"{run_.directory} has no rehearsal.json")
    parts = {"answer": [found.headline], "calls": found.call_lines(), "notes": found.notes()}
    said = {name: [one_line(line)[:CLAIM] for line in lines] for name, lines in parts.items()}
    return _shown({**said, "answer": said["answer"][0], "verdict": _short(run_)})


def confirm(directory: str = "artifacts/latest", timeout: float = 60.0) -> str:
    """Rehearses the command of a run that hung or crashed: the cause that was inferred is confirmed with the values by rank, or refuted."""
    document = json.loads(_output(["confirm", "--seconds", _limit(timeout), "--", directory]))
    chain = (document["because"] or {}).get("chain", ())
    links = [
        {"at": f"{each['at']['file']}:{each['at']['line']}", "because": one_line(each["because"])[:CLAIM],
         "how": each["how"], "values": {v["name"]: v["by_rank"] for v in each["values"]}}
        for each in chain
    ]  # fmt: skip
    told = {key: document[key] for key in ("answer", "why", "directory")}
    return _shown({**told, "why": one_line(told["why"])[:SUMMARY], "chain": links})


def shrink(directory: str = "artifacts/latest", budget: float = 150.0) -> str:
    """Reduces a failing run to a short script that fails in the same way; runs parts of it many times, for `budget` seconds."""
    document = json.loads(_output(["shrink", "--budget", _limit(budget), "--", directory]))
    told = {key: document.get(key) for key in ("conclusion", "summary", "run", "notes")}
    return _shown({**told, "source": str(document.get("source") or "")[:MOST_CHARACTERS]})


def patch(directory: str = "artifacts/latest") -> str:
    """The patch that `nsadiag fix` found for a run, with its cost, its proof and the alternatives; the sources are as they were."""
    found = _run(directory).repair
    if found is None:
        raise UsageError(f"no patch was looked for: {directory} has no fix.json", f"nsadiag fix {directory}")
    others = [{"what": one_line(o.what)[:CLAIM], "result": o.result or "not tried"} for o in found.others]
    document = {
        "result": found.result,
        "what": one_line(found.what)[:CLAIM],
        "cost": found.cost,
        "diff": found.diff[:MOST_CHARACTERS],
        "proof": {row.criterion: f"{'' if row.met else 'not shown: '}{row.because}" for row in found.proof},
        "others": others[:MOST_FACTS],
    }
    return _shown({key: value for key, value in document.items() if value})


def fix(directory: str = "artifacts/latest", diff: str = "", budget: float = 300.0) -> str:
    """Looks for a patch of a failed run's code and proves it by trials in copies, or judges a unified diff of yours by the same proof.

    Minutes. The sources stay as they are: applying the patch is left to you.
    """
    with tempfile.TemporaryDirectory(prefix="nsadiag-diff-") as room:
        given = ["--budget", _limit(budget), "--json"]
        if diff:
            (Path(room) / "given.diff").write_text(diff)
            given += ["--patch", str(Path(room) / "given.diff")]
        _output(["fix", *given, "--", directory])
    return patch(directory)


READS: tuple[Callable[..., str], ...] = (verdict, evidence, code, compare, patch, runs)
ACTS: tuple[Callable[..., str], ...] = (attach, check, confirm, fix, run, shrink)


def _run(directory: str) -> RunReport:
    report = load_report(Path(directory))
    if not isinstance(report, RunReport):
        raise UsageError(f"{directory} is a matrix", "give one of its cells: DIR/cells/ID")
    return report


def _verdict(run_: RunReport) -> Verdict:
    if run_.verdict is None:
        raise UsageError(f"{run_.directory} has no verdict", "nsadiag analyze DIR makes one")
    return run_.verdict


def _short(run_: RunReport) -> dict[str, Any]:
    found = _verdict(run_)
    facts = {
        f"e{n}": one_line(item.claim)[:CLAIM] for n, item in enumerate(found.evidence[:MOST_FACTS], start=1)
    }
    document = {
        "directory": str(run_.directory),
        "outcome": found.outcome,
        "class": found.cls,
        "mechanism": found.mechanism,
        "certainty": found.certainty,
        "confidence": found.confidence,
        "summary": one_line(found.summary)[:SUMMARY],
        "guilty_ranks": list(found.guilty_ranks[:16]),
        "blocked_ranks": list(found.blocked_ranks[:16]),
        "world_size": found.world_size,
        "at": _place(found.where),
        "peers_at": _place(found.peers_at),
        "step": found.where.step if found.where else None,
        "fix": found.fix and one_line(found.fix)[:SUMMARY],
        "next": found.next and one_line(found.next)[:SUMMARY],
        "action": found.action and found.action.do,
        "facts": facts,
        "ruled_out": {r.cls: one_line(r.because)[:CLAIM] for r in found.rejected[:MOST_RULED_OUT]},
        "gaps": [one_line(gap)[:CLAIM] for gap in found.gaps[:MOST_GAPS]],
    }
    kept = {key: value for key, value in document.items() if value not in (None, "", [], {})}
    for least in ("gaps", "ruled_out"):  # should it be too much after all
        if len(_shown(kept)) > MOST_CHARACTERS:
            kept.pop(least, None)
    return kept


def _place(place: Place | Where | None) -> dict[str, Any] | None:
    if place is None or not place.file:
        return None
    code_ = one_line(place.code or "")[:CODE]
    return {
        "file": one_line(place.file)[:CODE],
        "line": place.line,
        "function": place.function,
        "code": code_,
    }


def _shown(document: dict[str, Any]) -> str:
    return json.dumps(cleaned(document), ensure_ascii=False, indent=1)


def _limit(seconds: float) -> str:
    """The seconds that were asked for, where they are some: 0 would be no limit, and what is no number none either."""
    return str(float(seconds) if 0 < float(seconds) <= SECONDS else SECONDS)


def _judged(command: str, name: str, arguments: list[str]) -> str:
    """The verdict on the run that a command of nsadiag's own makes: the latest may be another's by then."""
    from nsadiag.commands import output
    from nsadiag.commands.runs import enter

    directory = output.new_directory(name)
    try:
        _output([command, "--out", str(directory), *arguments])
        enter(directory)
    finally:
        if not any(directory.iterdir()):
            directory.rmdir()  # it never came to a run
    return verdict(str(directory))


def _output(arguments: list[str]) -> str:
    """The JSON that a command of nsadiag's own prints; our stdout is not its to write to."""
    command, *rest = arguments
    line = [sys.executable, "-m", "nsadiag", command, "--json", *rest]
    try:
        done = programs.run(line, seconds=SECONDS + 120, grace_s=STOP_S, stderr_tail=STDERR_BYTES)
    except OSError as error:
        raise NsadiagError(str(error)) from None
    try:
        json.loads(done.stdout)
    except ValueError:
        raise _error_in(done.stderr, done.returncode) from None
    return done.stdout


def _error_in(said: str, code: int) -> NsadiagError:
    """The error that a command ended with, as it was before it was printed; where it printed none, the last it said."""
    _, is_error, error = f"\n{said}".rpartition("\nerror: ")
    if not is_error:
        return NsadiagError(said.strip()[-SUMMARY:] or f"exit code {code}")
    message, _, hint = error.partition("\nhint: ")
    return NsadiagError(message.strip()[:SUMMARY], hint.strip()[:SUMMARY])
