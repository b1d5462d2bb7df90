"""Golden evidence: what a real run of a script of repro/ left behind, made small and anonymous.

    python -m tests.support.recordings.golden rank_conditional_save ...     # runs each script once and records it anew
    python -m tests.support.recordings.golden --from DIR rank_conditional_save     # packs a run directory that is there
    python -m tests.support.recordings.golden --turned data_divergent_patience     # with the probe `paths`, by Python 3.12 or later

A recording is refused where its verdict is not the promised one, or where it still names this machine.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.pickles import PickleRefused, read_pickle
from nsadiag.evidence.ring.blackbox import (
    CHUNKS_AT,
    CHUNKS_HEADER,
    HEADER,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
)
from nsadiag.evidence.ring.header import read_header, read_names
from nsadiag.evidence.ring.names import CHUNK, CHUNK_TEXT, names_in
from nsadiag.evidence.ring.reader import valid_records

from ..promises import Promise, promises

REPO = Path(__file__).resolve().parents[3]
GOLDEN = REPO / "tests" / "golden"
MOST_BYTES = 60 * 1024
KEEP_CAPTURES = 4
KEEP_TEXT_BYTES = 8 * 1024
KEEP_SAMPLES = 60
KEEP_EVENTS = (
    1 << 20,
    8192,
    4096,
    2048,
    1024,
    512,
)  # of a ring: the first that makes a recording small enough
RUN_KEYS = ("schema_version", "kind", "name", "command", "world_size", "gaps")
NOT_KEPT = {"verdict.json", "report.md", "report.html", "stdout.log", "launcher.stdout.log", "cuda.core"}
SAYS_WHERE = {"environment", "host", "hostname", "ip"}
# What a path in a recording may begin with: names that every machine has, and those given here.
PLACES = {
    "job", "venv", "run", "scratch", "home", "python",
    "pytorch",  # where torch was built, in messages of its C++
    "usr", "lib", "lib64", "bin", "sbin", "etc", "opt", "dev", "proc", "sys", "tmp", "var", "mnt", "data",
}  # fmt: skip
ABSOLUTE = re.compile(rb"(?<=[\s\"'=:(\[])/([A-Za-z][\w.-]*)(?=/[\w.])")


def archive_of(name: str) -> Path:
    return GOLDEN / f"{name}.tar.xz"


def turned_of(name: str) -> Path:
    """The recording of the same script with the probe `paths`."""
    return GOLDEN / "turned" / f"{name}.tar.xz"


def recorded() -> list[str]:
    """Scripts that have a recording."""
    return [p.name for p in promises() if archive_of(p.name).exists()]


def unpack(archive: Path, folder: Path) -> RunDir:
    """The files of a recording, which holds nothing else; their modes tell a judgement nothing, nor do their times where it keeps none."""
    made: set[Path] = set()
    with tarfile.open(archive) as packed:
        for member in packed:
            content, path = packed.extractfile(member), folder / member.name
            assert content is not None, f"{archive.name}: {member.name} is no file"
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.write_bytes(content.read())
            if member.mtime:
                os.utime(path, (member.mtime, member.mtime))
    return RunDir(path=folder)


# -- making one anonymous -------------------------------------------------------------------------


def renamed(run: Path) -> list[tuple[str, str]]:
    """Names of this machine and what stands for them, longest first."""
    told = read_json(run / "run.json", {})
    names = {
        str(run.resolve()): "/run",
        str(REPO): "/job",
        sysconfig.get_paths()["purelib"]: "/venv/lib/python3/site-packages",
        sys.prefix: "/venv",
        str(Path.home()): "/home/user",
        str(told.get("host") or os.uname().nodename): "node0",
    }
    # The checkout that the job was run from, which may be another than this one.
    names |= {w.partition("/repro/")[0]: "/job" for w in told.get("command", []) if "/repro/" in w}
    # It may be another environment's, on this one's path.
    if torch := find_spec("torch"):
        names[str(Path(str(torch.origin)).parents[1])] = "/venv/lib/python3/site-packages"
    if not sys.base_prefix.startswith("/usr"):
        names[sys.base_prefix] = "/python"
    return sorted(names.items(), key=lambda pair: -len(pair[0]))


def scrubbed(text: str, names: list[tuple[str, str]]) -> str:
    for name, stands_for in names:
        text = text.replace(name, stands_for)
    return text


def without_places(value: Any) -> Any:
    """The document without what only says where, and as whom, it was recorded."""
    if isinstance(value, dict):
        return {k: without_places(v) for k, v in value.items() if k not in SAYS_WHERE}
    return [without_places(v) for v in value] if isinstance(value, list) else value


def without_docstring(text: str) -> str:
    """The source with empty lines for its docstring, which promises the verdict."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    first = tree.body[0] if tree.body else None
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return text
    lines = text.splitlines(keepends=True)
    return "\n" * (first.end_lineno or 0) + "".join(lines[first.end_lineno :])


# -- making one small -----------------------------------------------------------------------------


def short_ring(raw: bytes, keep: int, names: list[tuple[str, str]]) -> bytes:
    """A ring of just the newest `keep` events, without the names of host and machine."""
    header = read_header(raw)
    if header is None:
        return raw[:HEADER_BYTES]
    records = valid_records(raw, header.capacity)[-keep:]
    magic, header_bytes, record_bytes, _, pid, rank, world, mono, wall, _ = HEADER.unpack_from(raw)
    capacity = max(len(records), 1)
    slots = bytearray(capacity * RECORD_BYTES)
    for record in records.itertuples():
        RECORD.pack_into(slots, (record.sequence - 1) % capacity * RECORD_BYTES, *record)
    head = bytearray(raw[:HEADER_BYTES])
    HEADER.pack_into(
        head, 0, magic, header_bytes, record_bytes, capacity, pid, rank, world, mono, wall, b"node0"
    )
    if header.chunks is None:
        return bytes(head) + bytes(slots)
    chunks = chunks_of(names_in(raw, HEADER_BYTES + header.capacity * RECORD_BYTES, header.chunks), names)
    CHUNKS_HEADER.pack_into(head, CHUNKS_AT, CHUNK.size, len(chunks) // CHUNK.size)
    return bytes(head) + bytes(slots) + chunks


def chunks_of(known: dict[int, str], names: list[tuple[str, str]]) -> bytes:
    """Names of events, behind one another, without those of this machine."""
    found = b""
    for number, name in known.items():
        text = scrubbed(name, names).encode("utf-8", "surrogatepass")
        pieces = [text[at : at + CHUNK_TEXT] for at in range(0, len(text) or 1, CHUNK_TEXT)]
        found += b"".join(CHUNK.pack(number, n, len(text), piece, number) for n, piece in enumerate(pieces))
    return found


def old_captures(run: RunDir) -> set[Path]:
    """Folders of captures before the last two of each rank and machine, except those of the last look."""
    looks = read_json(run.watch, {}).get("looks", [])
    named = {f"{n:02d}" for look in looks[-1:] for n in (look["first"], look["second"])}
    old = set()
    for folder in (*run.path.glob("ranks/*/captures"), *run.path.glob("nodes/*/captures")):
        kept = named | {p.name for p in sorted(folder.iterdir())[-KEEP_CAPTURES:]}
        old |= {p for p in folder.iterdir() if p.name not in kept}
    return old


def _json(raw: bytes, names: list[tuple[str, str]]) -> bytes:
    document = without_places(json.loads(raw.decode(errors="replace")))
    return scrubbed(json.dumps(document, separators=(",", ":")), names).encode()


def _lines(raw: bytes, names: list[tuple[str, str]]) -> bytes:
    return scrubbed(raw.decode(errors="replace"), names).encode()


def _end(raw: bytes, names: list[tuple[str, str]]) -> bytes:
    return _lines(raw[-KEEP_TEXT_BYTES:], names)


def _samples(raw: bytes, names: list[tuple[str, str]]) -> bytes:
    rows = raw.splitlines(keepends=True)
    return _lines(b"".join(rows[:: max(len(rows) // KEEP_SAMPLES, 1)]), names)


def _run(raw: bytes, names: list[tuple[str, str]]) -> bytes:
    told = json.loads(raw)
    return _json(json.dumps({k: told[k] for k in RUN_KEYS if k in told}).encode(), names)


def _pickle(raw: bytes, names: list[tuple[str, str]]) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        try:
            plain = read_pickle(Path(file.name))
        except PickleRefused:
            return b""
    return pickle.dumps(json.loads(scrubbed(json.dumps(without_places(plain)), names)))


Writer = Callable[[bytes, "list[tuple[str, str]]"], bytes]
BY_NAME: dict[str, Writer] = {"run.json": _run, "samples.jsonl": _samples, "fr.pickle": _pickle}
BY_KIND: dict[str, Writer] = {
    ".json": _json, ".jsonl": _lines, ".log": _end, ".txt": _end,
    ".py": lambda raw, names: _lines(without_docstring(raw.decode(errors="replace")).encode(), names),
}  # fmt: skip


def packed(run: RunDir, keep_events: int) -> bytes:
    """The archive: the same bytes for the same directory, whoever makes it."""
    names, old = renamed(run.path), old_captures(run)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for path in sorted(p for p in run.path.rglob("*") if p.is_file() and not p.name.startswith(".")):
            if path.name in NOT_KEPT or old & set(path.parents):
                continue
            raw = path.read_bytes()
            if path.name == "blackbox.bin":
                content = short_ring(raw, keep_events, names)
            else:
                write = BY_NAME.get(path.name) or BY_KIND.get(path.suffix)
                content = write(raw, names) if write and raw else raw
            name = scrubbed(str(path.relative_to(run.path)), names)
            if name.startswith("nodes/"):
                name = re.sub(r"^nodes/[^/]+", "nodes/node0", name)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


# -- recording ------------------------------------------------------------------------------------


def strangers(folder: Path) -> set[str]:
    """First parts of absolute paths in the recording's text that are none of those every machine has."""
    found = set()
    for path in folder.rglob("*"):
        # A source file may name any path it likes: it is in the repository already.
        if path.is_file() and path.suffix != ".py":
            # Chunks of a black box cut its names to pieces.
            held = "\n".join(read_names(path).values()) if path.name == "blackbox.bin" else ""
            raw = path.read_bytes() if path.name != "blackbox.bin" else held.encode(errors="replace")
            found |= {part.decode() for part in ABSOLUTE.findall(raw)}
    return found - PLACES


def missed(promise: Promise, verdict: dict[str, Any]) -> list[str]:
    """What of the promise the verdict does not keep, in words; nothing where all of it is kept."""
    where = verdict["where"] or {}
    wrong = []
    if verdict["class"] not in promise.classes:
        wrong.append(f"class {verdict['class']}")
    if promise.mechanism and verdict["mechanism"] != promise.mechanism:
        wrong.append(f"mechanism {verdict['mechanism']}")
    if verdict["outcome"] not in promise.outcomes:
        wrong.append(f"outcome {verdict['outcome']}")
    if tuple(verdict["guilty_ranks"]) != promise.guilty_ranks:
        wrong.append(f"ranks {verdict['guilty_ranks']}")
    if promise.codes and not any(code in (where.get("code") or "") for code in promise.codes):
        wrong.append(f"line {where.get('file')}:{where.get('line')} {where.get('code')}")
    if promise.parameter and where.get("parameter") != promise.parameter:
        wrong.append(f"parameter {where.get('parameter')}")
    return wrong


def uncited(run: RunDir, verdict: dict[str, Any]) -> list[str]:
    """Files that the verdict's evidence names and that are not there."""
    sources = [each["source"].partition("#")[0] for each in verdict["evidence"]]
    return [source for source in sources if not (run.path / source).exists()]


def run_script(promise: Promise, out: Path, *more: str) -> None:
    """`nsadiag run` on it, as the tests do, with more options."""
    environment = {
        "OMP_NUM_THREADS": "1", "NSADIAG_PATIENCE": "0", **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    command = [sys.executable, "-m", "nsadiag", "run", "--json", "--force", "--out", str(out)]
    command += [*(promise.options or ("--timeout", "150")), *more, "--", *promise.command]
    subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )


def judged(archive: bytes) -> tuple[dict[str, Any], set[str]]:
    """The verdict on what is in the archive, and what in it still tells of this machine."""
    from nsadiag.analysis.verdict import judge_directory

    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed_run:
            packed_run.extractall(folder, filter="data")
        return judge_directory(Path(folder)).to_json(), strangers(Path(folder))


def record(promise: Promise, run: RunDir, to: Path) -> str | None:
    """Writes the archive; the reason where the run is not worth keeping."""
    reason = "it takes more room than a recording may, whatever is left out"
    for keep in KEEP_EVENTS:
        archive = packed(run, keep)
        if len(archive) > MOST_BYTES:
            continue
        verdict, tells = judged(archive)
        reasons = [*missed(promise, verdict), *(f"names /{part}" for part in sorted(tells))]
        if not reasons:
            to.write_bytes(archive)
            return None
        reason = f"{', '.join(reasons)} (of {keep} events): {verdict['summary']}"
    return reason


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="scripts, without .py; none: those without a recording")
    parser.add_argument("--from", dest="given", type=Path, help="a run directory: nothing is run")
    parser.add_argument("--turned", action="store_true", help="a further recording, with the probe `paths`")
    options = parser.parse_args()
    known = {p.name: p for p in promises()}
    names = options.names or [name for name in known if not archive_of(name).exists()]
    failed = 0
    for name in names:
        scratch = Path(tempfile.mkdtemp(prefix="golden-"))
        out = options.given or scratch / "run"
        if options.given is None:
            run_script(known[name], out, *(("--probes", "light,paths") if options.turned else ()))
        archive = turned_of(name) if options.turned else archive_of(name)
        reason = record(known[name], RunDir(path=out), archive)
        if reason is None:
            print(f"{name}: {archive.stat().st_size:,} bytes", flush=True)
            shutil.rmtree(scratch)
        else:
            failed += 1
            print(f"{name}: not recorded: {reason}; see {out}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
