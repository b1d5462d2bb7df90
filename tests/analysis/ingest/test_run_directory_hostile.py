"""Directories that somebody sent: whatever is in them, `analyze` and `report` end, stay small and touch nothing else."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.mutation.judging import MOST_MIB
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.documents.files import EvidenceRefused, open_evidence, read_evidence
from nsadiag.evidence.documents.types import DOCUMENTS, LINES
from nsadiag.evidence.layout import (
    RunDir,
    append_json_line,
    open_private,
    read_json,
    replace_private,
    write_json,
)
from nsadiag.evidence.recorder import member_ranks

NAME = "missing_rank_suspended"
SOME = 30
JUDGES = """
import json, sys
from support.mutation.judging import judged, peak_mib, quick
wrong = [str(each) for each in judged(quick(24), int(sys.argv[1]), seed=20) if each.came]
print(json.dumps([wrong, peak_mib()]))
"""
RANK = "ranks/00000"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return unpack(archive_of(NAME), tmp_path / "run").path


# -- whole commands ---------------------------------------------------------------------------------


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


def _bomb(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b" " * (256 << 20), 1))


def _loop(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.name)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 61))


HOSTILE = [
    (_pipe, f"{RANK}/meta.json"), (_pipe, f"{RANK}/blackbox.bin"), (_pipe, f"{RANK}/names.jsonl"), (_pipe, f"{RANK}/stderr.log"),
    (_pipe, "watch.json"), (_pipe, "sources/index.json"), (_pipe, "verdict.json"), (_zeros, f"{RANK}/names.jsonl"),
    (_zeros, f"{RANK}/blackbox.bin"), (_zeros, "ends.json"), (_huge, f"{RANK}/blackbox.bin"), (_huge, f"{RANK}/samples.jsonl"),
    (_huge, "verdict.json"), (_bomb, "nodes/node0/digest-99.json.gz"), (_loop, RANK),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("act", "where"), HOSTILE)
@pytest.mark.parametrize("command", ["analyze", "report", "diff", "top"])
def test_a_command_ends_with_an_answer(
    run: Path, command: str, act: Callable[[Path], None], where: str
) -> None:
    act(run / where)
    line = {"diff": [run, run], "top": [run, "--once"]}.get(command, [run])
    done = subprocess.run(
        [sys.executable, "-m", "nsadiag", command, *map(str, line)],
        capture_output=True, text=True, check=False, preexec_fn=_limited, timeout=300,
    )  # fmt: skip
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_twenty_thousand_ranks_that_left_nothing_are_judged(tmp_path: Path) -> None:
    for number in range(20_000):
        (tmp_path / "ranks" / f"{number:05d}").mkdir(parents=True)
    assert judge_directory(tmp_path).outcome == "unknown"


# -- mutations --------------------------------------------------------------------------------------


def test_broken_directories_are_judged_and_shown() -> None:
    """A sample of what `benchmarks/verdicts/broken_evidence.py` does by the thousand, in a process whose memory is its own."""
    done = subprocess.run(
        [sys.executable, "-c", JUDGES, str(SOME)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrong, peak = json.loads(done.stdout)
    assert wrong == []
    assert peak < MOST_MIB


# -- the door ---------------------------------------------------------------------------------------


def test_two_folders_that_spell_one_rank_are_one_rank(tmp_path: Path) -> None:
    run = unpack(archive_of("dataloader_worker_fault_fork_lock"), tmp_path)
    before = judge_directory(run.path)
    (run.path / "ranks" / "00000000").mkdir()
    assert judge_directory(run.path) == before


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside.txt", "/dev/null", "/proc/self/environ"])
def test_a_link_out_of_the_directory_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside.txt").write_text("theirs")
    path = tmp_path / "run" / RANK / "stderr.log"
    path.parent.mkdir(parents=True)
    path.symlink_to(target if target.startswith("/") else f"../{target}")
    with pytest.raises(EvidenceRefused):
        open_evidence(path)
    assert load_cell(tmp_path / "run").ranks[0].stderr_tail == ""


def test_a_link_within_the_directory_is_followed(tmp_path: Path) -> None:
    rank = RunDir(path=tmp_path).rank(0)
    rank.path.mkdir(parents=True)
    (tmp_path / "shared.log").write_text("ours")
    rank.stderr.symlink_to("../../shared.log")
    assert read_evidence(rank.stderr) == b"ours"


def test_what_lies_behind_a_linked_folder_is_neither_read_nor_written(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "meta.json").write_text('{"pid": 7}')
    run = RunDir(path=tmp_path / "run")
    (run.path / "ranks").mkdir(parents=True)
    run.rank(0).path.symlink_to(elsewhere)
    assert read_json(run.rank(0).meta) is None
    with pytest.raises(EvidenceRefused):
        write_json(run.rank(0).meta, {})
    assert (elsewhere / "meta.json").read_text() == '{"pid": 7}'


@pytest.mark.parametrize("write", [
    lambda path: replace_private(path, b"ours"),
    lambda path: open_private(path).close(),
    lambda path: append_json_line(path, {}),
])  # fmt: skip
def test_nothing_is_written_through_a_link(tmp_path: Path, write: Callable[[Path], None]) -> None:
    theirs, path = tmp_path / "bashrc", tmp_path / "matrix.csv"
    theirs.write_text("theirs")
    path.symlink_to(theirs)
    try:
        write(path)
    except OSError:
        assert path.is_symlink()
    else:
        assert path.read_bytes() == b"ours"
    assert theirs.read_text() == "theirs"


def test_a_pipe_is_never_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "samples.jsonl")
    with pytest.raises(OSError):
        append_json_line(tmp_path / "samples.jsonl", {})


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        (
            "meta.json",
            '{"pid": -7, "world_size": true, "host": "a", "argv": ["x", 3]}',
            {"host": "a", "argv": ["x"]},
        ),
        ("meta.json", '{"world_size": 99999999999, "cwd": null}', {}),
        ("meta.json", "[]", None),
        ("ends.json", '{"0": {"pid": 5, "t_s": NaN}, "x": {}, "1": []}', {"0": {"pid": 5}}),
        ("py_spy.json", '[{"frames": [{"name": "f", "filename": 3, "line": 1}]}, 7]', [{"frames": []}]),
        ("exception.json", '{"type": "E"}', None),
        (
            "watch.json",
            '{"looks": [{"judgement": "still", "t_s": 1.5, "first": 1, "second": 2}, {"first": 2}]}',
            {"looks": [{"judgement": "still", "t_s": 1.5, "first": 1, "second": 2}]},
        ),
        ("run.json", "[" * 100_000, None),
        ("names.json", '{"a": 7', None),
        ("run.json", '{"world_size": ' + "9" * 5000 + "}", None),
    ],
)
def test_what_is_not_of_the_promised_type_is_left_out_and_told(
    tmp_path: Path, name: str, text: str, kept: object
) -> None:
    (tmp_path / name).write_text(text)
    gaps: list[object] = []
    found = read_json(tmp_path / name, None, gaps)  # type: ignore[arg-type]
    assert json.dumps(found) == json.dumps(kept)
    assert [str(gap).split()[0] for gap in gaps] == [name]


@pytest.mark.parametrize("name", sorted(DOCUMENTS | LINES))
def test_the_class_of_each_document_is_found(name: str) -> None:
    shape = (DOCUMENTS | LINES)[name]
    for document in ({}, [{}], {"0": {}}):
        shape(document, [])  # the class of a row is imported here


def test_a_broken_document_is_a_gap_of_the_verdict(run: Path) -> None:
    (run / RANK / "meta.json").write_text("[]")
    verdict = judge_directory(run)
    assert [gap for gap in verdict.gaps if gap.startswith("rank 0: meta.json does not hold what it should")]


def test_a_source_that_is_no_python_file_of_this_machine_is_not_shown(run: Path, tmp_path: Path) -> None:
    from nsadiag.analysis.facts import locations

    secret = tmp_path / "id_rsa"
    secret.write_text("secret\n" * 9)
    (tmp_path / "ours.py").write_text("shown\n")
    assert locations.place(str(secret), 1, None).code is None
    assert locations.place(str(tmp_path / "ours.py"), 1, None).code == "shown"


def test_half_a_surrogate_pair_in_a_document_is_replaced_and_a_whole_one_stays(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        '{"name": "a\\ud800b", "host": "\\ud83d\\ude00", "command": ["\\udcff"]}'
    )
    assert read_json(tmp_path / "run.json") == {
        "name": "a\ufffdb",
        "host": "\U0001f600",
        "command": ["\ufffd"],
    }


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        ("[0, 1, 12]", {0, 1, 12}),
        ("0-2", {0, 1, 2}),
        ("", set()),
        ("[]", set()),
        ("[x, 1]", {1}),
        ("9" * 5000, set()),
        (f"[3, {'9' * 5000}]", {3}),
    ],
)
def test_members_of_a_group_are_the_ranks_among_what_is_listed(told: str, ranks: set[int]) -> None:
    assert member_ranks(told) == ranks
