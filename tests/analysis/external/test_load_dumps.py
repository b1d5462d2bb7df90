"""`nsadiag analyze` on flight-recorder dumps that others collected: the right class and ranks, whatever files are there."""

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dump_maker import BEGAN_NS, FAULTS, Job, write_dumps

from nsadiag.analysis.ingest.dumps.columns import Categories, GroupNames, RankColumns
from nsadiag.analysis.ingest.dumps.plain import document_of, plain_columns
from nsadiag.analysis.verdict import judge_evidence as judge_external
from nsadiag.errors import UsageError
from nsadiag.evidence.records import Verdict

OUTCOMES = {"missing_rank": "hung", "straggler_rank": "slow", "healthy": "healthy"}


class Runs:
    """Its pickle says: call this."""

    def __reduce__(self) -> object:
        return os.system, ("touch planted",)


def told(verdict: Verdict) -> tuple[object, ...]:
    where = verdict.where
    return verdict.cls, verdict.guilty_ranks, where and (where.file, where.line, where.collective)


@pytest.mark.parametrize("tp", [0, 8])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_with_its_rank(tmp_path: Path, fault: str, tp: int) -> None:
    write_dumps(tmp_path, Job(ranks=24, entries=200, fault=fault, culprit=11, tp=tp))
    verdict = judge_external(tmp_path)
    assert verdict.cls == FAULTS[fault]
    assert verdict.outcome == OUTCOMES.get(verdict.cls, "hung")
    assert verdict.guilty_ranks == (() if fault == "none" else (11,))
    assert verdict.world_size == 24
    if fault != "none":
        assert len(verdict.blocked_ranks) == 23
        assert verdict.where is not None and verdict.where.collective is not None
        assert (verdict.where.file or "").startswith("/job/")
        assert verdict.evidence and all(
            (tmp_path / e.source.partition("#")[0]).is_file() for e in verdict.evidence
        )


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("fault", ["none", "missing", "type", "size"])
def test_torchcomms_recorder_counts_over_all_groups_and_says_only_what_is_retired(
    tmp_path: Path, fault: str, form: str
) -> None:
    prefix = "comm_lib_trace_rank_"
    job = Job(ranks=8, entries=100, fault=fault, culprit=5, tp=4, form=form, prefix=prefix, torchcomms=True)
    write_dumps(tmp_path, job)
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == (FAULTS[fault], () if fault == "none" else (5,))
    if fault != "none":
        assert verdict.where is not None and verdict.where.collective is not None
        assert (verdict.where.collective.group, verdict.where.collective.seq) == ("world", 41)


@pytest.mark.parametrize("fault", ["missing", "size", "straggle"])
def test_names_order_and_one_dump_in_a_hundred_make_no_difference(tmp_path: Path, fault: str) -> None:
    job = Job(ranks=100, entries=150, fault=fault, culprit=42, tp=4)
    write_dumps(tmp_path / "a", job)
    whole = judge_external(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    names = sorted(p.name for p in (tmp_path / "b").iterdir())
    for name in random.Random(1).sample(names, len(names)):
        (tmp_path / "b" / name).rename(tmp_path / "b" / f"trace.{name.rpartition('_')[2]}")
    assert told(judge_external(tmp_path / "b")) == told(whole)
    (tmp_path / "a" / "nccl_trace_rank_3").unlink()
    fewer = judge_external(tmp_path / "a")
    assert (fewer.cls, fewer.guilty_ranks) == (whole.cls, whole.guilty_ranks)
    assert any(gap.startswith("no dump of rank 3 ") for gap in fewer.gaps)


def test_json_and_wrapped_rings_tell_the_same(tmp_path: Path) -> None:
    for form, skew in (("pickle", 0), ("json", 0), ("pickle", 60)):
        write_dumps(tmp_path / f"{form}{skew}", Job(ranks=6, entries=120, culprit=2, form=form, skew=skew))
    verdicts = [judge_external(folder) for folder in sorted(tmp_path.iterdir())]
    assert all(told(verdict) == told(verdicts[0]) for verdict in verdicts)
    assert verdicts[0].guilty_ranks == (2,)


def test_many_culprits_are_all_named_and_few_are_listed_as_evidence(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=64, entries=100, fault="none"))
    for rank in range(20, 40):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        dump = pickle.loads(path.read_bytes())
        dump["entries"] = dump["entries"][:-1]
        path.write_bytes(pickle.dumps(dump, 2))
    for rank in (*range(20), *range(40, 64)):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        dump = pickle.loads(path.read_bytes())
        dump["entries"][-1] |= {"state": "started", "retired": False}
        path.write_bytes(pickle.dumps(dump, 2))
    verdict = judge_external(tmp_path)
    assert verdict.guilty_ranks == tuple(range(20, 40))
    assert (
        "Ranks 20-39 never reached" in verdict.summary
        and "ranks 0-19, 40-63 are waiting in it" in verdict.summary
    )
    assert len(verdict.evidence) < 8


def test_a_rank_that_is_only_a_moment_behind_is_not_called_missing(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=4, entries=100, culprit=2))
    for path in tmp_path.iterdir():
        created_s = (BEGAN_NS + 80 * 1_000_000) / 1e9
        os.utime(path, (created_s + 0.5, created_s + 0.5))
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls) == ("unknown", "unknown")
    assert "pending for 0.5 s" in verdict.summary


def test_where_one_rank_alone_entered_a_collective_it_is_that_rank(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=32, entries=100, fault="none"))
    path = tmp_path / "nccl_trace_rank_0"
    dump = pickle.loads(path.read_bytes())
    last = dump["entries"][-1]
    dump["entries"].append(last | {"collective_seq_id": 101, "state": "started", "retired": False})
    path.write_bytes(pickle.dumps(dump, 2))
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == (
        "hung",
        "rank_conditional_collective",
        (0,),
    )
    assert "31 of 32 ranks never did" in verdict.summary


def test_when_the_dump_of_the_culprit_is_the_one_that_is_absent_it_is_named_with_less_confidence(
    tmp_path: Path,
) -> None:
    write_dumps(tmp_path, Job(ranks=8, entries=100, culprit=5))
    (tmp_path / "nccl_trace_rank_5").unlink()
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (5,))
    assert verdict.confidence <= 0.6


@pytest.mark.parametrize("fault", ["type", "size"])
def test_of_two_ranks_it_is_the_one_that_does_what_it_never_did(tmp_path: Path, fault: str) -> None:
    write_dumps(tmp_path, Job(ranks=2, entries=200, fault=fault, culprit=1))
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks, verdict.blocked_ranks) == (FAULTS[fault], (1,), (0,))
    assert verdict.confidence <= 0.7


def test_groups_that_wait_for_each_other_are_a_circle_and_no_missing_rank(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=4, entries=80, fault="none"))
    for rank in range(4):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        dump = pickle.loads(path.read_bytes())
        pairs = {"8": [0, 1, 2, 3], "9": [0, 1, 2, 3]}
        dump["pg_config"] |= {n: {"name": n, "desc": f"pair_{n}", "ranks": str(m)} for n, m in pairs.items()}
        name = "8" if rank < 2 else "9"
        stuck = {**dump["entries"][-1], "process_group": (name, f"pair_{name}"), "collective_seq_id": 1}
        dump["entries"].append(stuck | {"state": "started", "retired": False, "record_id": 80})
        path.write_bytes(pickle.dumps(dump, 2))
    verdict = judge_external(tmp_path)
    assert verdict.cls == "collective_order_mismatch"
    assert verdict.guilty_ranks == (0, 1, 2, 3)


def columns_of(data: bytes, categories: Categories | None = None) -> RankColumns:
    return plain_columns(0, "f", document_of(data), GroupNames(), categories or Categories())


def codes_of(columns: RankColumns) -> list[list[int]]:
    return [column.codes.tolist() for column in columns.groups]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_dump_says_the_same_in_every_protocol_and_as_json(tmp_path: Path, protocol: int) -> None:
    write_dumps(tmp_path, Job(ranks=4, tp=2, fault="straggle", culprit=0, entries=100, skew=9))
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        dump, seen = pickle.loads(data), columns_of(data)
        assert columns_of(pickle.dumps(dump, protocol)) == seen
        assert columns_of(json.dumps(dump).encode()) == seen


def test_categories_of_ten_thousand_groups_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsadiag.analysis.ingest.dumps.columns.MOST_CATEGORIES", 20)
    write_dumps(tmp_path, Job(ranks=12, entries=300, tp=2))
    categories = Categories()
    for path in sorted(tmp_path.iterdir()):
        data = path.read_bytes()
        assert codes_of(columns_of(data, categories)) == codes_of(columns_of(data))
    assert len(categories) <= 20


def test_torchs_own_pickle_and_json_are_read_alike(tmp_path: Path) -> None:
    program = """
import os, sys
os.environ["TORCH_FR_BUFFER_SIZE"] = "1000"
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
half = dist.new_group([0], group_desc="half")
for n in range(100):
    dist.all_reduce(torch.ones(3 + n % 5))
    dist.broadcast(torch.ones(2, n % 3 + 1), 0, group=half)
open("rank_0.pickle", "wb").write(_dump_fr_trace())
open("rank_0.json", "wb").write(_dump_fr_trace_json())
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    pickled, from_json = (
        columns_of((tmp_path / f"rank_0.{form}").read_bytes()) for form in ("pickle", "json")
    )
    for columns in (pickled, from_json):
        # gloo may retire its last one a moment after the call returned.
        assert {c.group.name: (c.first, c.last) for c in columns.groups} == {
            "default_pg": (1, 100),
            "half": (1, 100),
        }
    assert codes_of(pickled) == codes_of(from_json)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_refused_and_runs_nothing(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "trace_0").write_bytes(pickle.dumps({"version": "2.10", "entries": [Runs()]}, protocol))
    with pytest.raises(UsageError, match="only plain values are read from a pickle"):
        judge_external(folder)
    assert not (tmp_path / "planted").exists()


def test_one_hostile_dump_among_others_is_a_gap(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=8, entries=100, culprit=5))
    hostile = tmp_path / "nccl_trace_rank_2"
    hostile.write_bytes(
        hostile.read_bytes().replace(
            b"X\x05\x00\x00\x00state", b"cos\nsystem\nq\x7fX\x05\x00\x00\x00state", 1
        )
    )
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (5,))
    assert any("nccl_trace_rank_2 was refused: it asks for os.system" in gap for gap in verdict.gaps)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_a_pickle_that_asks_for_all_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(b"\x80\x02Nr\xff\xff\xff\xf0.")
    with pytest.raises(UsageError, match="more memory than any dump needs"):
        judge_external(tmp_path)


def test_one_dump_alone_blames_nobody(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=8, entries=100))
    verdict = judge_external(tmp_path / "nccl_trace_rank_3")
    assert (verdict.outcome, verdict.guilty_ranks) == ("unknown", ())
    assert "Ranks 0-2, 4-7 left no dump" in verdict.summary


def test_the_dump_tells_its_rank_where_the_files_name_does_not(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=3, entries=100, culprit=2))
    for path, name in zip(sorted(tmp_path.iterdir()), ("x", "y", "z"), strict=True):
        path.rename(tmp_path / f"{name}.pkl")
    assert judge_external(tmp_path).guilty_ranks == (2,)


def test_a_dump_that_is_cut_off_is_a_gap(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=4, entries=200, culprit=1))
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(path.read_bytes()[:9000])
    verdict = judge_external(tmp_path)
    assert verdict.guilty_ranks == (1,)
    assert any("nccl_trace_rank_3 was refused: not a whole pickle" in gap for gap in verdict.gaps)


def test_the_command_prints_the_verdict_and_writes_nothing(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=8, entries=100))
    before = sorted(p.name for p in tmp_path.iterdir())
    command = [sys.executable, "-m", "nsadiag", "analyze", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["verdict"]["class"] == "missing_rank" and document["world_size"] == 8
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_directory_without_evidence_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "notes.bin").write_bytes(b"\0\1\2")
    with pytest.raises(UsageError, match="is evidence that nsadiag knows") as error:
        judge_external(tmp_path)
    assert "flight-recorder dumps" in error.value.hint
