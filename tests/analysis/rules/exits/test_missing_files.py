"""A file that one rank waits for and another's failed code would have made: what ties the two, and what does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.rules.exits import missing_files as module
from nsadiag.analysis.rules.exits.missing_files import MissingFile, missing_file
from nsadiag.evidence.documents.kernel import NO_PROCESS
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json
from nsadiag.evidence.records import Place
from nsadiag.worker.failures.crash import describe

SCRIPT = """
DONE = "finished"

def describe(shard):
    return max(shard)

def write(shard, folder, rank):
    meta = {"largest-one": describe(shard)}
    store(meta, folder, rank)
    log.info("largest-one")

def push(metrics):
    largest = max(metrics)
    send(largest / "largest-one")

def store(meta, folder, rank):
    (folder / f"shard-{rank}.json").write_text(meta)
    (folder / "meta").mkdir()
    (folder / DONE).touch()

def wait(path):
    while not path.exists():
        sleep(0.1)

def commit(folder):
    expected = [folder / f"shard-{r}.json" for r in range(4)]
    while not all(p.exists() for p in expected):
        sleep(0.1)

def other(folder):
    while not (folder / "largest-one.json").exists():
        sleep(0.1)

def main(folder):
    epoch(folder)

def epoch(folder):
    (folder / "largest-one").unlink()
    commit(folder)

def last(folder):
    store({}, folder, "shard-")
    other(folder)

def marked(folder):
    marker = folder / DONE
    wait(marker)
"""


def raised(script: Path, call: str, step: int = 20) -> dict[str, Any]:
    """The row of an exception that a handler in a thread spoke of."""
    names: dict[str, Any] = {}
    exec(compile(SCRIPT, str(script), "exec"), names)
    try:
        eval(call, names)
    except Exception as error:
        told = describe(error, error.__traceback__, "writer_0")
        frames = [f for f in told["frames"] if f["file"] == str(script)]
        more = {"how": "handled", "during": "logging", "step": step, "t_mono_ns": step, "place": ""}
        return {**told, "frames": frames, **more}
    raise AssertionError(call)


@pytest.fixture
def waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rank 0 naps at the line, called by those; the ranks' exceptions in their order."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    lines = SCRIPT.splitlines()

    def found(at: tuple[str, ...], *calls: list[str]) -> MissingFile | None:
        run = RunDir(path=tmp_path / "run")
        for rank, each in enumerate(calls):
            make_private_dir(run.rank(rank).path)
            write_json(run.rank(rank).meta, {"rank": rank, "world_size": len(calls)})
            for step, call in enumerate(each):
                append_json_line(run.rank(rank).raised, raised(script, call, step))
        frames = []
        for function, text in (one.split(": ") for one in at):
            head = lines.index(next(line for line in lines if line.startswith(f"def {function}(")))
            number = next(n for n, line in enumerate(lines) if n > head and text in line)
            frames.append(Place(file=str(script), line=number + 1, function=function))
        state = SimpleNamespace(place=frames[0], doing="sleep", frames=tuple(frames))
        capture = SimpleNamespace(proc=NO_PROCESS, source="ranks/00000/captures/02")
        blocked = SimpleNamespace(state=state, capture=capture, number=0)
        monkeypatch.setattr(module, "hung_ranks", lambda case: [blocked])
        return missing_file(Case(load_cell(run.path)))

    return found


FAILS = "write([], None, 3)"
COMMIT = ("commit: sleep", "epoch: commit(", "main: epoch(")


def test_whoever_failed_before_it_made_the_file_is_told(waits: Any) -> None:
    found = waits(COMMIT, [], ["push([])", FAILS])
    assert found and list(found.rows) == [1] and found.rows[1][0] == 2
    assert (found.name, found.asks) == ("shard-", "not all((p.exists() for p in expected))")


def test_a_path_that_comes_as_an_argument_is_followed_to_its_name(waits: Any) -> None:
    found = waits(("wait: sleep", "marked: wait(marker)"), [], [FAILS])
    assert found and found.name == "finished"


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        (COMMIT, ([], ["push([])"])),
        (("other: sleep",), ([], [FAILS])),
        (("other: sleep", "last: other("), ([], [FAILS])),
        (COMMIT, ([], [FAILS, FAILS])),
        (COMMIT, ([FAILS], [FAILS])),
    ],
    ids=[
        "another file",
        "a key and a message are no names",
        "what is made elsewhere in a caller",
        "it went on from it before",
        "all ranks met it",
    ],
)
def test_nobody_is_told_without_a_tie(at: tuple[str, ...], calls: tuple[list[str], ...], waits: Any) -> None:
    assert waits(at, *calls) is None
