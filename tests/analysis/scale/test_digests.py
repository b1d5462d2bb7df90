"""Evidence reduced on each node: nothing that a verdict needs is lost, and what comes from elsewhere is not trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recordings.crowds import dumps_of
from support.recordings.golden import archive_of, recorded, unpack

from nsadiag.analysis.ingest.run_directory import load_ranks, rank_without_evidence
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.scale.digests import chosen, equivalence, traits
from nsadiag.analysis.scale.digests.equivalence import newest
from nsadiag.analysis.scale.digests.make import digest_of, write_digest
from nsadiag.analysis.scale.digests.representatives import FEW_RANKS, representatives
from nsadiag.analysis.scale.digests.shape import Digest, DigestRefused, SharedValue, packed, unpacked
from nsadiag.analysis.verdict import judge, judge_directory
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.documents.operations import Checksum, Observed, Operation
from nsadiag.evidence.documents.process import Meta
from nsadiag.evidence.documents.training import Sample, SampledFrame
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.spans import ranks_in, spelled
from nsadiag.reports.formats.issue import render_issue
from nsadiag.reports.load import load_report

MANY = FEW_RANKS + 8
QUICKLY_TRIED = {
    "async_work_broadcast_batch", "collective_args_mismatch_last_batch", "collective_order_mismatch_task_heads",
    "ddp_unused_parameter_one_rank", "external_wait_stale_lock", "gil_held_native_call_join", "missing_rank_suspended",
    "network_stall_lost_connection", "uneven_inputs_packed_validation",
}  # fmt: skip


def shape(verdict: dict[str, Any]) -> dict[str, Any]:
    where = verdict["where"] or {}
    place = {key: where.get(key) for key in ("file", "line", "parameter")}
    told = ("class", "outcome", "guilty_ranks", "blocked_ranks", "world_size", "signature", "confidence")
    return {**{key: verdict[key] for key in told}, **place}


def digest_of_one(tmp_path: Path, name: str = "external_wait_stale_lock") -> Digest:
    run = unpack(archive_of(name), tmp_path)
    return digest_of(load_ranks(run, [0, 1]), host="node0", look=2)


@pytest.mark.parametrize(
    "name",
    [n if n in QUICKLY_TRIED else pytest.param(n, marks=pytest.mark.slow) for n in recorded()],
)
def test_a_verdict_by_digests_and_few_ranks_is_that_by_the_evidence_of_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd, _ = dumps_of(name, tmp_path / "recorded", MANY)
    if len(crowd.few) < 2:
        pytest.skip("one rank is no crowd")
    many = RunDir(path=tmp_path / "many")
    crowd.write_frame(many)
    for rank in range(MANY):
        crowd.write_rank(many, rank)
    by_digests = load_cell(many.path)
    assert len(by_digests.ranks) < MANY
    monkeypatch.setattr(chosen, "FEW_RANKS", MANY)
    by_all = load_cell(many.path)
    assert len(by_all.ranks) == MANY
    assert shape(judge(by_digests).to_json()) == shape(judge(by_all).to_json())


@pytest.mark.parametrize(
    ("name", "world_size"),
    [
        ("external_wait_stale_lock", 1_000),
        ("collective_args_mismatch_last_batch", 1_000),
        pytest.param("missing_rank_suspended", 10_000, marks=pytest.mark.slow),
    ],
)
def test_of_very_many_ranks_the_evidence_of_a_few_is_wanted_and_names_the_guilty(
    name: str, world_size: int, tmp_path: Path
) -> None:
    crowd, small = dumps_of(name, tmp_path / "recorded", world_size)
    many = RunDir(path=tmp_path / "many")
    for digest in crowd.digests(RunDir(path=tmp_path / "scratch")):
        path = many.digest(digest.host, digest.look)
        path.parent.mkdir(parents=True)
        path.write_bytes(packed(digest))
    crowd.write_frame(many)
    ranks = representatives(newest(unpacked(path.read_bytes()) for path in many.digests()))
    assert {*small["guilty_ranks"]} < {*ranks}
    assert len(ranks) < 20
    for rank in ranks:
        crowd.write_rank(many, rank)
    verdict = judge(load_cell(many.path)).to_json()
    kept = ("class", "outcome", "guilty_ranks", "where", "peers_at")
    assert {key: verdict[key] for key in kept if key != "where"} == {
        key: small[key] for key in kept if key != "where"
    }
    assert verdict["where"]["line"] == small["where"]["line"]
    assert len(verdict["blocked_ranks"]) == world_size - len(small["guilty_ranks"])
    assert not [gap for gap in verdict["gaps"] if "left no evidence" in gap]


def test_ranks_that_are_alike_cost_no_more_than_one_of_them(tmp_path: Path) -> None:
    crowd, _ = dumps_of("external_wait_stale_lock", tmp_path / "recorded", 10_000)
    *_, last = crowd.digests(RunDir(path=tmp_path / "scratch"), per_node=16)
    *_, alone = crowd.digests(RunDir(path=tmp_path / "scratch"), per_node=1)
    assert len(packed(last)) < 1.2 * len(packed(alone))


def test_a_digest_is_the_same_after_its_journey(tmp_path: Path) -> None:
    digest = digest_of_one(tmp_path)
    assert unpacked(packed(digest)) == unpacked(packed(unpacked(packed(digest))))
    assert unpacked(packed(digest)).traits["stack"] == digest.traits["stack"]
    assert packed(digest) == packed(digest)


def test_secrets_do_not_travel(tmp_path: Path) -> None:
    token = "hf_" + "a1B2" * 10
    digest = dataclasses.replace(
        digest_of_one(tmp_path), traits={"end": (SharedValue(value=f"401 for {token}", ranks=(0,)),)}
    )
    assert token not in gzip.decompress(packed(digest)).decode()


@given(st.sets(st.integers(0, 5_000)))
def test_ranks_are_read_as_they_were_spelled(ranks: set[int]) -> None:
    assert ranks_in(spelled(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize("text", ["1-", "-1", "3-1", "a", "1,,2", "0-9999999", "1 2", "0-900000,0-900000"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ranks_in(text)


BODY = {
    "schema_version": 1, "host": "n", "look": 2, "world_size": 4, "ranks": "0-1", "groups": {}, "calls": [],
    "traits": {"end": [{"value": None, "ranks": "0-1"}]}, "counters": {"steps": [1, None]},
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": "0-1,1"}, {"ranks": 7}, {"world_size": 10**9}, {"world_size": None}, {"look": "x"},
        {"traits": {"end": [{"value": 1, "ranks": "0-2"}]}}, {"traits": []}, {"counters": {"steps": [1]}},
        {"traits": {"end": [{"value": 1, "ranks": "0"}, {"value": 2, "ranks": "0-1"}]}},
        {"counters": {"steps": [1, "x"]}}, {"counters": {"steps": [1, float("nan")]}}, {"groups": {"g": 1}},
    ],
)  # fmt: skip
def test_a_digest_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    assert unpacked(gzip.compress(json.dumps(BODY).encode())).ranks == (0, 1)
    with pytest.raises(DigestRefused):
        unpacked(gzip.compress(json.dumps({**BODY, **change}).encode()))


def test_a_few_bytes_that_ask_for_much_memory_are_refused() -> None:
    with pytest.raises(DigestRefused):
        unpacked(gzip.compress(b"[" + b" " * 100_000_000 + b"]"))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_and_nothing_else_happens(data: st.DataObject) -> None:
    whole = bytearray(gzip.compress(json.dumps(BODY).encode(), mtime=0))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DigestRefused):
        unpacked(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def test_two_nodes_that_have_the_same_rank_do_not_fit_together(tmp_path: Path) -> None:
    digest = digest_of_one(tmp_path)
    with pytest.raises(DigestRefused, match="rank 0 is on node0 and on node1"):
        newest([digest, dataclasses.replace(digest, host="node1")])


def test_a_damaged_digest_is_a_gap_and_the_rest_is_judged(tmp_path: Path) -> None:
    run = unpack(archive_of("external_wait_stale_lock"), tmp_path)
    path = write_digest(run, host="node0", ranks=[0, 1], look=2)
    whole = judge(load_cell(run.path)).to_json()
    path.write_bytes(path.read_bytes()[:100])
    verdict = judge(load_cell(run.path)).to_json()
    assert shape(verdict) == shape(whole)
    assert any("digest-02" in gap for gap in verdict["gaps"])


def test_whoever_the_chosen_receive_from_is_wanted_as_well() -> None:
    """A pipeline in which every stage receives from the one before: the cause is at its head."""
    count = 200
    digest = Digest(
        host="n", look=2, world_size=count, ranks=tuple(range(count)), groups={}, calls=(),
        traits={"stack": (SharedValue(value="recv", ranks=tuple(range(60, count))), SharedValue(value="send", ranks=tuple(range(60))))},
        counters={"peer": tuple(float(rank - 1) if rank > 50 else None for rank in range(count))},
    )  # fmt: skip
    assert {50, 51, 52, 59} <= {*representatives(newest([digest]))}


def test_where_all_ranks_differ_the_traits_that_tell_most_decide() -> None:
    count = 4 * equivalence.MOST_KINDS
    each = tuple(SharedValue(value=rank, ranks=(rank,)) for rank in range(count))
    odd = (SharedValue(value="waits", ranks=tuple(range(1, count))), SharedValue(value="reads", ranks=(0,)))
    digest = Digest(
        host="n", look=2, world_size=count, ranks=tuple(range(count)), groups={}, calls=(),
        traits={"stack": odd, "stderr_tail": each}, counters={"step_s": (9.0, *[1.0] * (count - 1))},
    )  # fmt: skip
    assert newest([digest]).kinds == (tuple(range(1, count)), (0,))


def test_where_every_rank_has_its_own_batches_the_one_that_asks_for_something_else_is_of_a_kind_of_its_own() -> (
    None
):
    def rank(number: int) -> RankEvidence:
        batch = Checksum(name="input", shape=(8,), exact=number + 1, total=float(number), magnitude=1.0)
        weight = Checksum(name="w", shape=(8,), exact=int(number == 70), total=1.0, magnitude=1.0)
        step = (
            Operation(kind="forward", values=(batch,), value=float(number)),
            Operation(kind="collective", name="all_reduce", reduces="MAX" if number == 77 else "SUM"),
            Operation(kind="step", values=(weight,)),
        )
        return replace(
            rank_without_evidence(number),
            meta=Meta(world_size=100),
            observed=(Observed(step=1, operations=step),),
        )

    digest = digest_of(map(rank, range(100)), host="n", look=0)
    assert {*newest([digest]).kinds[1:]} == {(70,), (77,)}


def test_what_no_node_has_reduced_is_reduced_once_and_kept(tmp_path: Path) -> None:
    count = chosen.FEW_ENOUGH + 8
    crowd, small = dumps_of("external_wait_stale_lock", tmp_path / "recorded", count)
    many = RunDir(path=tmp_path / "many")
    crowd.write_frame(many)
    for rank in range(count):
        crowd.write_rank(many, rank)
    first = judge_directory(many.path).to_json()
    (kept,) = many.digests()
    assert unpacked(kept.read_bytes()).ranks == tuple(range(count))
    changed = kept.stat().st_mtime_ns
    assert shape(judge_directory(many.path).to_json()) == shape(first)
    assert kept.stat().st_mtime_ns == changed
    assert (first["class"], first["guilty_ranks"]) == (small["class"], small["guilty_ranks"])
    assert len(first["blocked_ranks"]) == count - 1


def test_an_issue_names_all_ranks_that_stood_alike(tmp_path: Path) -> None:
    crowd, _ = dumps_of("external_wait_stale_lock", tmp_path / "recorded", MANY)
    many = RunDir(path=tmp_path / "many")
    crowd.write_frame(many)
    for rank in range(MANY):
        crowd.write_rank(many, rank)
    judge_directory(many.path)
    assert f"rank 0, 2-{MANY - 1}" in render_issue(load_report(many.path))


def test_every_field_of_a_rank_is_a_trait_or_said_by_another(tmp_path: Path) -> None:
    fields = {field.name for field in dataclasses.fields(RankEvidence)}
    assert fields >= traits.NO_TRAIT_OF_THEIR_OWN
    assert {*traits.SUMMED} - {"visited", "operations", "trained"} == fields - traits.NO_TRAIT_OF_THEIR_OWN
    plain = rank_without_evidence(3)
    for name in ("piles", "threads", "given", "first_steps", "attempts", "samples"):
        value: Any = (
            (Sample(t_mono_ns=1, frames=(SampledFrame("/u/t.py", 3, "f"),)),) if name == "samples" else ["x"]
        )
        value = ((0, replace(NOT_RAISED, type="E")),) if name == "attempts" else value
        assert traits.traits_of(dataclasses.replace(plain, **{name: value})) != traits.traits_of(plain)
