"""The paths in a run directory (docs/contract.md, "Run directory")."""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps, loads
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nsadiag.evidence.documents import kept
from nsadiag.evidence.documents.files import check_own_folder, holds_anything, numbered, read_evidence
from nsadiag.evidence.ownership import check_not_planted, check_way
from nsadiag.evidence.secrets.masking import mask_text

if TYPE_CHECKING:
    from nsadiag.evidence.documents.types import Unfit

SCHEMA_VERSION = 1
COLLECTED = "collected"  # `kind` in run.json of a verdict on what other tools left
# Folders of more ranks than this are looked into before any of them is read.
MANY_RANKS = 4096
# Nothing in a run directory is for others: stacks, environment and logs can hold secrets.
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
# In the environment of a job whose rings are held in memory: the directory, on every node's own /dev/shm.
RING_DIR = "NSADIAG_RING_DIR"
# In the environment of an agent, and of its job, on one of several nodes: the node's name, where hosts share theirs.
NODE = "NSADIAG_NODE"
# In a node's folder: how far its clocks are from node 0's.
CLOCK = "clock.json"
# In a node's folder: what its kernel says of processes that it ended for want of memory.
OOM = "oom.json"
# What a rank's worker server is asked for to say what the tasks of its event loop wait for.
TASKS_HANDLER = "nsadiag_tasks"
ROUNDS_HANDLER = "nsadiag_rounds"
UNGRADED_HANDLER = "nsadiag_ungraded"
PYTHON_HANDLER = "nsadiag_python"
# How the name of a worker server's socket ends once its rank has come to its exit handlers (instead of ".sock").
LEAVING = ".leaving.sock"


@dataclass(frozen=True, kw_only=True)
class CaptureDir:
    """One look at one rank from outside."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    py_spy = property(lambda self: self.path / "py_spy.json")
    native = property(lambda self: self.path / "native.txt")
    flight_recorder = property(lambda self: self.path / "fr.json")
    flight_recorder_pickle = property(lambda self: self.path / "fr.pickle")
    traceback = property(lambda self: self.path / "traceback.txt")
    counters = property(lambda self: self.path / "counters.json")
    tasks = property(lambda self: self.path / "tasks.json")
    ungraded = property(lambda self: self.path / "ungraded.json")
    proc = property(lambda self: self.path / "proc.json")
    cuda_core = property(lambda self: self.path / "cuda.core")
    cuda_text = property(lambda self: self.path / "cuda.txt")
    answers = property(lambda self: self.path / "answers.json")
    gaps = property(lambda self: self.path / "gaps.json")
    # Of a machine, not of a rank.
    ras = property(lambda self: self.path / "ras.json")
    ras_text = property(lambda self: self.path / "ras.txt")
    gpu = property(lambda self: self.path / "gpu.json")

    def child(self, pid: int) -> CaptureDir:
        """A process that the rank started, such as a data-loader worker."""
        return CaptureDir(path=self.path / "children" / str(pid))

    def children(self) -> list[CaptureDir]:
        """All that were looked at, by pid."""
        return [CaptureDir(path=p) for p in numbered(self.path / "children")]


def part_of(log: Path, number: int) -> Path:
    """An earlier part of a log, counted from 1: where RLIMIT_FSIZE of its writer ends one file, the log goes on in another."""
    return log.with_name(f"{log.stem}.{number}{log.suffix}")


def parts_of(log: Path) -> list[Path]:
    """A log's earlier parts in order, then the log itself, whether it is there or not."""
    number = 1
    while part_of(log, number).exists():
        number += 1
    return [*(part_of(log, n) for n in range(1, number)), log]


def log_of(path: Path) -> Path:
    """The log that a file is, or is an earlier part of."""
    name, _, number = path.stem.rpartition(".")
    return path.with_name(name + path.suffix) if number.isdigit() else path


@dataclass(frozen=True, kw_only=True)
class RankDir:
    """Everything known of one rank."""

    path: Path

    @property
    def rank(self) -> int:
        return int(self.path.name)

    blackbox = property(lambda self: self.path / "blackbox.bin")
    meta = property(lambda self: self.path / "meta.json")
    stdout = property(lambda self: self.path / "stdout.log")
    stderr = property(lambda self: self.path / "stderr.log")
    exception = property(lambda self: self.path / "exception.json")
    leaving = property(lambda self: self.path / "leaving.json")
    raised = property(lambda self: self.path / "raised.jsonl")
    signals = property(lambda self: self.path / "signals.jsonl")
    wraps = property(lambda self: self.path / "wraps.json")
    ungraded = property(lambda self: self.path / "ungraded.jsonl")
    unwaited = property(lambda self: self.path / "unwaited.jsonl")
    replicas = property(lambda self: self.path / "replicas.jsonl")
    evaluated = property(lambda self: self.path / "evaluated.jsonl")
    given = property(lambda self: self.path / "given.jsonl")
    invariants = property(lambda self: self.path / "invariants.jsonl")
    piles = property(lambda self: self.path / "piles.jsonl")
    threads = property(lambda self: self.path / "threads.jsonl")
    unheld = property(lambda self: self.path / "unheld.jsonl")
    parity = property(lambda self: self.path / "parity.jsonl")
    samples = property(lambda self: self.path / "samples.jsonl")
    faults = property(lambda self: self.path / "faults.log")
    tracebacks = property(lambda self: self.path / "tracebacks.log")
    ddp = property(lambda self: self.path / "ddp.json")
    graph = property(lambda self: self.path / "graph.json")
    recomputed = property(lambda self: self.path / "recomputed.jsonl")
    units = property(lambda self: self.path / "units.json")
    loaders = property(lambda self: self.path / "loaders.json")
    settings = property(lambda self: self.path / "settings.json")
    path_words = property(lambda self: self.path / "paths.bin")
    path_names = property(lambda self: self.path / "paths.jsonl")
    gaps = property(lambda self: self.path / "gaps.jsonl")
    witness = property(lambda self: self.path / "witness.jsonl")
    proof = property(lambda self: self.path / "proof.jsonl")
    proof_data = property(lambda self: self.path / "proof.bin")

    def capture(self, number: int) -> CaptureDir:
        return CaptureDir(path=self.path / "captures" / f"{number:02d}")

    def captures(self) -> list[CaptureDir]:
        """All captures, oldest first."""
        return [CaptureDir(path=p) for p in numbered(self.path / "captures")]


@dataclass(frozen=True, kw_only=True)
class RunDir:
    """A single run, or one cell of a matrix: both have the same contents."""

    path: Path

    run = property(lambda self: self.path / "run.json")
    cell = property(lambda self: self.path / "cell.json")
    verdict = property(lambda self: self.path / "verdict.json")
    unnamed = property(lambda self: self.path / "unnamed.jsonl")
    ends = property(lambda self: self.path / "ends.json")
    parity = property(lambda self: self.path / "parity.json")
    proof = property(lambda self: self.path / "proof.json")
    watch = property(lambda self: self.path / "watch.json")
    rehearsal = property(lambda self: self.path / "rehearsal.json")
    confirmation = property(lambda self: self.path / "confirmation.json")
    order = property(lambda self: self.path / "order.json")
    repair = property(lambda self: self.path / "fix.json")
    report_md = property(lambda self: self.path / "report.md")
    report_html = property(lambda self: self.path / "report.html")
    sources = property(lambda self: self.path / "sources")
    sources_index = property(lambda self: self.sources / "index.json")

    def rank(self, rank: int) -> RankDir:
        return RankDir(path=self.path / "ranks" / f"{rank:05d}")

    def ranks(self) -> Iterator[RankDir]:
        """Ranks that left anything, in order of rank."""
        found = numbered(self.path / "ranks")
        if len(found) > MANY_RANKS:
            found = [path for path in found if holds_anything(path)]
        return (RankDir(path=path) for path in found)

    def node(self, host: str) -> Path:
        return self.path / "nodes" / host

    def digest(self, host: str, look: int) -> Path:
        """A look at the node's ranks, reduced to what is distinct among them."""
        return self.node(host) / f"digest-{look:02d}.json.gz"

    def digests(self) -> list[Path]:
        """The digests of all nodes and captures."""
        return sorted(self.path.glob("nodes/*/digest-*.json.gz"))

    def node_capture(self, host: str, number: int) -> CaptureDir:
        """One look at a machine, of the same moment as the ranks' captures of that number."""
        return CaptureDir(path=self.node(host) / "captures" / f"{number:02d}")

    @classmethod
    def of(cls, capture: CaptureDir) -> RunDir:
        """The run that the capture of a rank or process belongs to."""
        for folder in capture.path.parents:
            if folder.name in ("ranks", "nodes"):
                return cls(path=folder.parent)
        raise ValueError(f"{capture.path} is in no run directory")


def this_node() -> str:
    """The name of this machine in a run directory."""
    return os.environ.get(NODE) or os.uname().nodename


def make_private_dir(path: Path) -> Path:
    """Creates the directory and those above it that are missing, all private whatever the umask; others stay as they are.

    Raises OSError, also for one that another user made in a directory that everybody may write to.
    """
    if path.is_dir():
        check_not_planted(path)
        return path
    if not path.parent.is_dir():
        make_private_dir(path.parent)
    check_way(path)
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        check_not_planted(path)
    return path


def open_private(path: Path, mode: str = "w") -> IO[Any]:
    """`open` for a file that nobody else may read: the user's umask is for the user's files. Follows no link."""
    # The name of a file may be in no encoding at all.
    text, errors = (None, None) if "b" in mode else ("utf-8", "surrogateescape")
    return open(path, mode, encoding=text, errors=errors, opener=_opener)


def _opener(name: str, flags: int) -> int:
    check_own_folder(Path(name))
    # Of a pipe that somebody put there instead nobody may ever read.
    handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no regular file", name)
    os.set_blocking(handle, True)  # a job's stdout is as it would be without us
    return handle


def write_private(path: Path, content: str | bytes) -> None:
    """Replaces the file in one step: what others wrote is to be masked before."""
    replace_private(path, content.encode(errors="replace") if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    """Replaces the file in one step, so that a killed writer never leaves half a document; secrets are masked."""
    replace_private(path, f"{mask_text(dumps(value, indent=1, default=str))}\n".encode())


def replace_private(path: Path, content: bytes, *, readers: int = 0) -> None:
    """Writes a new file and puts it where the old one is, or the link: never through one. Raises OSError.

    `readers`: bits of its mode by which others may read it.
    """
    try:
        _replace(path, content, FILE_MODE | readers)
    except OSError as error:
        if not kept.keep(path, content, error):
            raise
    else:
        kept.forget(path)


def _replace(path: Path, content: bytes, mode: int) -> None:
    check_own_folder(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _named(error, path) from None
    try:
        with io.open(handle, "wb") as file:  # noqa: UP020 - `open` is what programs replace, os.fdopen imports
            file.write(content)
            if mode != FILE_MODE:
                os.fchmod(handle, mode)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _named(error, path) from None
        raise


def _named(error: OSError, path: Path) -> OSError:
    """The same of the file that is meant, and not of the new one that would take its place.

    One without a number is no system call's: the job's signal handler raised it here, or one of its threads threw it in.
    """
    return error if error.errno is None else OSError(error.errno, error.strerror, str(path))


def append_json_line(path: Path, value: Any) -> None:
    """Adds a line in one write, which other writers of the file cannot tear apart; secrets are masked. Raises OSError."""
    handle = _opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(handle, (mask_text(dumps(value, default=str)) + "\n").encode())
    finally:
        os.close(handle)


def read_own_json(path: Path) -> dict[str, Any]:
    """A document that a rank wrote, read by a rank: unchecked, and empty where there is none.

    Types are dataclasses, and those are made by executing text. A process that does so after a KeyboardInterrupt that
    nobody caught ends with exit code 1, and no longer by SIGINT: CPython forgets what it was about.
    """
    try:
        document = loads(read_evidence(path))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # the job's own (see _named)
        return {}
    return document if isinstance(document, dict) else {}


def read_json(path: Path, default: Any = None, gaps: list[Unfit] | None = None) -> Any:
    """The document, of the types that its name promises, or `default` where there is none (evidence/documents/types.py)."""
    # In a rank, which reads next to nothing, its start is not to pay for all the shapes.
    from nsadiag.evidence.documents import types as documents

    return documents.read(path, default, gaps)


def read_json_lines(path: Path, gaps: list[Unfit] | None = None) -> list[Any]:
    """All whole rows of the types that the file's name promises; a last one that its writer did not finish is skipped."""
    from nsadiag.evidence.documents import types as documents

    return documents.read_lines(path, gaps)
