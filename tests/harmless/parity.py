"""One program, run plain and watched in the same directory: what differs, in words."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from suite import BIN, PRELUDE, Program

MARK = "HARMLESS_MARK"
GIVE_UP_S = 280.0  # of one program; of many in a job, LONG_S
LONG_S = 1500.0
LONGEST_DIFFERENCE = 12
UNCAUGHT = "raised, and nobody caught it:"  # said by many.py
# The report that nsadiag prints behind the job's own output.
REPORT = re.compile(rb" (?:HUNG|CRASHED|SLOW|WRONG|HEALTHY|UNKNOWN) +[^\n]* \xc2\xb7 ")
# What no two runs have in common, watched or not; nothing else may differ.
NOT_ALIKE = (
    (rb"\b[EWIC]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", b"LOG "),  # torch's Python logs: time, pid
    (rb"\[[EWIC]\d{3,4} \d\d:\d\d:\d\d\.\d+ ", b"[LOG "),  # its C++ logs
    (rb"\[rank\d+\]:\[", b"["),
    (rb"\d{4}-\d\d-\d\d[_ T]\d\d:\d\d:\d\d(?:[.,]\d+)?", b"TIME"),
    (rb"(?i)\bpid[: =]*\d+\)?", b"PID"),
    (rb"\bprocess \d+", b"PID"),
    (rb"\bline 1: +\d+ ", b"line 1: PID "),  # bash, of what was killed
    (rb"0x[0-9a-f]{6,}", b"0x"),
    (rb"^USDT:.*", b"USDT"),  # torch's profiler: time, pid
    (rb"\b(?:127\.0\.0\.1|localhost|\[?::1\]?|\[?::ffff:127\.0\.0\.1\]?)[:\]]+ ?\d{4,5}", b"ADDRESS"),
    (rb"\bport[: ]+\d{4,5}", b"PORT"),
    (rb"\b\d+\.\d+ ?(?:s|ms|seconds)\b", b"SECONDS"),
    (rb"\btorchelastic_\w+|none_[a-z0-9_]{8}\b", b"RUN"),
    (rb"\b\d+:\d+ (\w+\.cpp:)", rb"PID \1"),  # Kineto's, on a CUDA build without a GPU
    (
        rb"\bcuda[0-9a-f]{11}\b",
        b"cuda",
    ),  # a thread of CUDA's driver: its descriptor is in the name, as in the next
    (rb"\bfd=\d+", b"fd="),  # torch's C++ logs of a socket: docs/harmless.md, descriptors
    (rb"\brun_id: [\w-]+", b"RUN"),
    (rb"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}_\w{8}\b", b"RUN"),  # torchrun's folder of error files
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one run: all that a user can find of it."""

    code: int
    stdout: bytes
    stderr: bytes
    files: dict[str, str]
    left: int


def environment(program: Program, home: Path, mark: str) -> dict[str, str]:
    """The same for both: little, so that nothing of the caller's is in it."""
    here = str(home.parent / "work")
    given = dict(pair.replace("$PWD", here).split("=", 1) for pair in program.env)
    fixed = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "COLUMNS": "200",
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "TMPDIR": str(home),
        MARK: mark,
    }
    return {**fixed, **given}


def lay_out(program: Program, work: Path) -> None:
    """An empty working directory but for the program and what it may import."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for file in PRELUDE.glob("*.py"):
        shutil.copy(file, work)
    if program.how == "each":
        lay_out_members(program, work)
    elif program.files:
        shutil.copy(program.files[0], work / "train.py")


def lay_out_members(program: Program, work: Path) -> None:
    """A folder for each, and what to run there."""
    for member in program.members:
        lay_out(member, work / member.name.partition("/")[2])
    lines = [
        {
            "name": m.name.partition("/")[2],
            "command": m.command(),
            "env": m.env,
            "stdin": m.stdin,
            "unordered": m.unordered,
        }
        for m in program.members
    ]
    (work / "each.json").write_text(json.dumps(lines))


def watched(command: list[str], out: Path, probes: str, *, many: bool = False) -> list[str]:
    options = ["--passthrough", "--timeout", "250", "--probes", probes, "--out", str(out)]
    # One program that hangs is not to end the others: whoever runs them ends it.
    options += ["--timeout", f"{LONG_S - 100:g}", "--stall-after", "600"] if many else []
    return [str(BIN / "nsadiag"), "run", *options, "--", *command]


def run(command: list[str], program: Program, work: Path) -> Outcome:
    """Runs it to its end, and ends what it left."""
    home, mark = work.parent / "home", uuid.uuid4().hex
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    lay_out(program, work)
    stdin = work.parent / "stdin"
    stdin.write_text(program.stdin + "\n" if program.stdin else "")
    with stdin.open("rb") as given:
        job = subprocess.Popen(
            command,
            cwd=work,
            env=environment(program, home, mark),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            stdout, stderr = job.communicate(timeout=LONG_S if program.members else GIVE_UP_S)
        except subprocess.TimeoutExpired:
            end(mark)
            stdout, stderr = job.communicate()
            stderr += b"\nNO END"
    left = len(marked(mark))
    end(mark)
    return Outcome(
        code=shell_code(job.returncode), stdout=stdout, stderr=stderr, files=files_in(work), left=left
    )


def marked(mark: str) -> list[int]:
    """Living processes that came of a run."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(") ")[2][:1]
                if state != "Z" and wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def end(mark: str) -> None:
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def files_in(work: Path) -> dict[str, str]:
    """By path below it: mode, and digest of the contents."""
    found, given = {}, {file.name for file in PRELUDE.glob("*.py")} | {"train.py", "each.json"}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if "__pycache__" in path.parts or path.name in given:
            continue
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
        else:
            found[name] = f"{path.stat().st_mode:o}"
    return found


def without_notes(stderr: bytes) -> bytes:
    """The job's own part of stderr: nsadiag's notes begin with its name (docs/harmless.md)."""
    return re.sub(rb"(?m)^nsadiag: [^\n]*\n", b"", stderr)


def without_report(stdout: bytes) -> bytes:
    """The job's own part of what `nsadiag run` printed."""
    starts = [found.start() for found in REPORT.finditer(stdout)]
    return stdout[: starts[-1]] if starts else stdout


def comparable(text: bytes, program: Program) -> list[str]:
    """Its lines without what differs between any two runs; of several ranks each one's together."""
    for pattern, instead in NOT_ALIKE:
        text = re.sub(pattern, instead, text, flags=re.M)
    lines = text.decode(errors="backslashreplace").splitlines()
    return sorted(lines, key=_whose) if program.unordered else lines


def _whose(line: str) -> str:
    rank = re.match(r"\[\d\] ", line)
    return rank[0] if rank else line


def both(program: Program, where: Path, *, probes: str = "") -> tuple[Outcome, Outcome]:
    """Plain, then watched; with probes "armed", of an armed environment, left alone and not."""
    work, out = where / "work", where / "out"
    if probes == "armed":
        off, on = (["env", f"NSADIAG_ARMED={switch}", *program.command()] for switch in ("0", "by-file"))
        return run(off, program, work), run(on, program, work)
    plain = run(program.command(), program, work)
    shutil.rmtree(out, ignore_errors=True)
    seen = run(
        watched(program.command(), out, probes or program.probes, many=bool(program.members)), program, work
    )
    return plain, replace(seen, stdout=without_report(seen.stdout), stderr=without_notes(seen.stderr))


def differences(program: Program, plain: Outcome, seen: Outcome) -> dict[str, list[str]]:
    """By program: what differs, a line each. Empty if nothing does."""
    found: dict[str, list[str]] = {}
    for what in sorted({"stdout", "stderr"} - set(program.apart), reverse=True):
        one, other = comparable(getattr(plain, what), program), comparable(getattr(seen, what), program)
        first, second = sections(one, program), sections(other, program)
        for name in {**first, **second}:
            changes = _lines_apart(first.get(name, []), second.get(name, []))
            if changes:
                found.setdefault(name, []).extend(f"{what}: {line}" for line in changes)
    for name, said in failures(program, comparable(plain.stdout, program)):
        found.setdefault(name, []).append(f"plain: {said}")
    whole = program.name
    for name, change in _files_apart(plain.files, seen.files):
        part = program.part(name.partition("/")[0])
        found.setdefault(part if part in program.parts else whole, []).append(f"file {name}: {change}")
    if plain.code != program.exits:  # it does not do what it is there for
        said = (plain.stderr.decode(errors="replace").strip() or "nothing").splitlines()
        found.setdefault(whole, []).append(
            f"plain: exit code {plain.code}, and not the {program.exits} of its head; it said {said[-1]!r}"
        )
    if plain.code != seen.code:
        found.setdefault(whole, []).append(f"exit code: {plain.code} -> {seen.code}")
    if plain.left != seen.left:
        found.setdefault(whole, []).append(f"processes left: {plain.left} -> {seen.left}")
    return found


def failures(program: Program, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Programs that share a job and do not do in it what they are there for, plain: what fails compares nothing."""
    exits = {member.name: member.exits for member in program.members}
    for name, said in sections(lines, program).items():
        for line in said:
            ended = re.fullmatch(r"ended with (-?\d+)", line)
            if UNCAUGHT in line:
                yield name, line
            elif ended is not None and shell_code(int(ended[1])) != exits.get(name, 0):
                yield name, f"{line}, and not with the {exits.get(name, 0)} of its head"


def shell_code(code: int) -> int:
    """As a shell says it, where a signal ended it."""
    return code if code >= 0 else 128 - code


def sections(lines: list[str], program: Program) -> dict[str, list[str]]:
    """By program: the lines between where it begins and where the next one does."""
    if not program.members:
        return {program.name: lines}
    found: dict[str, list[str]] = {}
    now = program.name
    for line in lines:
        begins = re.search(r"=== (\w+)$", line)
        if begins:
            now = program.name if begins[1] == "end" else program.part(begins[1])
        else:
            found.setdefault(now, []).append(line)
    return found


def _lines_apart(plain: list[str], seen: list[str]) -> Iterator[str] | list[str]:
    if plain == seen:
        return []
    import difflib

    changes = [d for d in difflib.ndiff(plain, seen) if d[:1] in "-+"] if len(plain) + len(seen) < 600 else []
    changes = changes or [f"- {a}\n+ {b}" for a, b in zip(plain, seen, strict=False) if a != b]
    changes = changes or [f"{len(plain)} lines -> {len(seen)} lines"]
    return [change[:400] for change in changes[:LONGEST_DIFFERENCE]]


def _files_apart(plain: dict[str, str], seen: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted({*plain, *seen}):
        if plain.get(name) != seen.get(name):
            yield name, f"{plain.get(name)} -> {seen.get(name)}"
