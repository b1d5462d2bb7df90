"""Errors of a clean-up that hide the first one: which of a chain would have ended the rank anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.analysis.facts.exceptions import first_of
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.ingest.masked_exceptions import marked
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json
from nsadiag.worker.failures.crash import describe

PEER_GONE = "Connection closed by peer [10.0.0.2]:4711"
SCRIPT = """
import sys

def train():
    raise {first}

def save():
    raise AttributeError("no scheduler")

def fit():
    {body}

fit()
"""
RESCUES = """try:
        train()
    except Exception as error:
        save()
        raise"""


def cell(path: Path, body: str, *first: str) -> CellEvidence:
    """Ranks that ran this, each with the first error it says; a second apart."""
    run = RunDir(path=path / "run")
    for rank, each in enumerate(first):
        script = path / f"train{rank}.py"
        script.write_text(SCRIPT.format(body=body, first=each))
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": len(first), "pid": 100 + rank})
        try:
            exec(compile(script.read_text(), str(script), "exec"), {})
        except Exception as error:
            told = describe(error, error.__traceback__, "MainThread")
            write_json(run.rank(rank).exception, {**told, "t_mono_ns": (rank + 1) * 10**9})
    return marked(load_cell(run.path))


@pytest.mark.parametrize(
    "body",
    [
        RESCUES,
        RESCUES.replace("raise", "raise error"),
        RESCUES.replace("raise", "sys.exit(1)"),
        "try:\n        train()\n    finally:\n        save()",
        "try:\n        train()\n    except KeyError:\n        raise\n    finally:\n        save()",
    ],
    ids=["raises again", "by name", "ends the process", "finally", "finally behind a handler"],
)
def test_a_clean_up_that_fails_gives_way_to_what_it_would_have_let_go_on(body: str, tmp_path: Path) -> None:
    exception = cell(tmp_path, body, 'KeyError("x")').rank(0).exception
    assert exception and (exception.type, first_of(exception).type) == ("AttributeError", "KeyError")


@pytest.mark.parametrize(
    "body",
    [
        "try:\n        train()\n    except KeyError:\n        save()",
        'try:\n        train()\n    except KeyError:\n        raise ValueError("no such table")',
        "try:\n        train()\n    except KeyError as error:\n        save()\n        raise ValueError() from error",
        "try:\n        train()\n    except KeyError:\n        pass\n    save()",
    ],
    ids=["another way", "another error", "fails before it tells more", "swallowed"],
)
def test_an_error_on_another_way_counts_itself(body: str, tmp_path: Path) -> None:
    exception = cell(tmp_path, body, 'KeyError("x")').rank(0).exception
    assert exception and first_of(exception) is exception


def test_whoever_fails_in_the_rescue_after_its_peer_was_gone_follows_that_peer(tmp_path: Path) -> None:
    gone = f"RuntimeError({PEER_GONE!r})"
    first = first_break(cell(tmp_path, RESCUES, gone, 'KeyError("x")'))
    assert first and first.rank.rank == 1


def test_without_the_source_the_last_error_counts(tmp_path: Path) -> None:
    of_nobody = cell(tmp_path, RESCUES, 'KeyError("x")')
    (tmp_path / "train0.py").unlink()
    exception = marked(load_cell(of_nobody.path)).rank(0).exception
    assert exception and first_of(exception) is exception
