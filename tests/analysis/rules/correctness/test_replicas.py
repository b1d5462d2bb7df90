"""Jobs that end well and train wrongly: gradients kept back or left out, a load on one rank, NaN; from tables by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.events import events
from support.findings import findings
from support.processes.looks import sample
from support.processes.warm_jobs import WarmJobs
from support.tables import case_of, table

from nsadiag.analysis.facts.locations import most_seen, waits_for_peers
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.replica_sums import Drift, drift, kept_equal
from nsadiag.analysis.relations.replication import averaged as names_averaged
from nsadiag.analysis.relations.replication import wrapped_at_other_steps
from nsadiag.analysis.rules.correctness.nonfinite import nonfinite
from nsadiag.analysis.rules.correctness.replicas.checkpoint_loads import OF_OPTIMIZER, uneven_load
from nsadiag.analysis.rules.correctness.replicas.drift_causes import _left, _were_reduced
from nsadiag.analysis.rules.correctness.replicas.replica_drift import (
    _beside_units,
    _by_hand,
    _left_out,
    _not_reduced,
)
from nsadiag.analysis.rules.correctness.replicas.unsynced_gradients import unsynced_steps
from nsadiag.evidence.documents.training import Bucket, Parameter, WrappedModel
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.patterns.single_call import thawed
from nsadiag.worker import session
from nsadiag.worker.probes.autograd.backward import _begin, now

BEGIN, END, POINT = Phase.BEGIN, Phase.END, Phase.POINT
COLUMNS = ["rank", "kind", "phase", "name", "a", "b", "label", "step"]  # the last where it is not 0
AT = "\t/home/u/train.py:9:epoch"


def case(*rows: tuple[Any, ...], cell: CellEvidence | None = None) -> Any:
    return case_of(cell, events=events(dict(zip(COLUMNS, row, strict=False)) for row in rows))


def cell(path: Path, sums: dict[int, list[list[float]]]) -> CellEvidence:
    """Ranks whose parameters p0, p1, ... had these sums after steps 0, 1, ..."""
    run = RunDir(path=path)
    for rank, steps in sums.items():
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": len(sums), "pid": 100 + rank})
        for step, values in enumerate(steps):
            each = [[f"p{n}", [4], value, 8.0] for n, value in enumerate(values)]
            append_json_line(run.rank(rank).replicas, {"step": step, "elements": 8, "parameters": each})
    return load_cell(path)


def loaded(both: CellEvidence, *rows: tuple[Any, ...], before_wrap: bool = False) -> tuple[int, ...]:
    found = uneven_load(case(*rows, cell=both), before_wrap=before_wrap)
    return found.by if found else ()


def micro(sync: bool) -> list[tuple[Any, ...]]:
    """One backward of rank 0, in no_sync or not."""
    backward = [(0, Kind.BACKWARD, phase, "", 0, 0, AT) for phase in (BEGIN, END)]
    return backward if sync else [no_sync(BEGIN), *backward, no_sync(END)]


def no_sync(phase: Phase) -> tuple[Any, ...]:
    return (0, Kind.GRAD_SYNC, phase, "no_sync", 0, 0, AT if phase == BEGIN else "")


def step(number: int, rank: int = 0) -> tuple[Any, ...]:
    return (rank, Kind.STEP, POINT, "", number, 0, "")


def test_an_epoch_that_ends_within_an_accumulation_steps_on_gradients_that_were_kept_back() -> None:
    found = unsynced_steps(case(*micro(False), *micro(True), step(1), *micro(False), step(2)), 0)
    assert found and (found.steps, found.of, found.first, found.all) == (1, 2, 2, False)
    assert found.place and found.place.line == 9
    assert unsynced_steps(case(*micro(False), *micro(True), step(1)), 0) is None
    assert unsynced_steps(case(*micro(True), step(1), *micro(False), step(2)), 0, until=1) is None


def test_no_sync_in_every_backward_is_told_from_a_wrapper_that_was_passed_by() -> None:
    found = unsynced_steps(case(*micro(False), step(1), *micro(False), step(2)), 0)
    assert found and found.all
    assert unsynced_steps(case(*micro(True), step(1)), 0) is None


def test_a_checkpoint_that_one_rank_loads_after_the_wrap_is_named(tmp_path: Path) -> None:
    load = (0, Kind.IO, BEGIN, "torch.load last.pt", 0, 0, AT)
    wraps = [(r, Kind.WRAP, BEGIN, "DDP", 0, 0, AT) for r in (0, 1)]
    both = cell(tmp_path, {0: [[1.0]], 1: [[2.0]]})
    assert loaded(both, *wraps, load, step(1), step(1, 1)) == (0,)
    assert not loaded(both, load, *wraps, step(1), step(1, 1))  # DDP copied it to all
    assert not loaded(both, *wraps, load, (1, *load[1:]), step(1), step(1, 1))


def test_a_load_is_one_between_the_wrap_and_the_next_step_whatever_was_trained_before(tmp_path: Path) -> None:
    load = (0, Kind.IO, BEGIN, "torch.load last.pt", 0, 0, AT)
    wraps = [(r, Kind.WRAP, BEGIN, "DDP", 0, 0, AT) for r in (0, 1)]
    both = cell(tmp_path, {0: [[1.0], [1.0]], 1: [[1.0], [2.0]]})
    before = [step(1), step(1, 1)]
    assert loaded(both, *before, *wraps, load, step(2), step(2, 1)) == (0,)
    assert not loaded(both, *before, *wraps, step(2), step(2, 1), load)


def test_an_optimizer_loaded_on_one_rank_before_the_wrap_is_named_too(tmp_path: Path) -> None:
    """DDP copies the model that was loaded, and not the optimizer's state."""
    load = (0, Kind.IO, BEGIN, "torch.load last.pt", 0, 0, AT)
    wraps = [(r, Kind.WRAP, BEGIN, "DDP", 0, 0, AT) for r in (0, 1)]
    both = cell(tmp_path, {0: [[1.0], [1.0]], 1: [[1.0], [2.0]]})
    rows = (load, *wraps, step(1), step(1, 1))
    assert loaded(both, *rows, before_wrap=True) == (0,) and not loaded(both, *rows)


def test_of_two_wraps_the_one_counts_behind_which_the_replicas_part(tmp_path: Path) -> None:
    """And each function that loads by itself: all ranks read the snapshot, one gives its optimizer what was in it."""
    both = cell(tmp_path, {0: [[1.0], [1.0]], 1: [[1.0], [2.0]]})
    wraps = [(r, Kind.WRAP, BEGIN, "DDP", 0, 0, AT) for r in (0, 1)]
    reads = [(r, Kind.IO, BEGIN, "torch.load last.pt", 0, 0, AT) for r in (0, 1)]
    restores = (0, Kind.IO, BEGIN, OF_OPTIMIZER, 0, 0, AT)
    rows = (*wraps, step(1), step(1, 1), *reads, restores, *wraps, step(2), step(2, 1))
    found = uneven_load(case(*rows, cell=both), before_wrap=True, wraps=2)
    assert found is not None and (found.op, found.by) == (OF_OPTIMIZER, (0,))
    assert found.place is not None and found.place.line == 9
    assert not uneven_load(case(*rows, cell=both), before_wrap=True, wraps=1)


def test_replicas_of_ranks_that_had_made_other_numbers_of_steps_before_the_wrap_are_not_compared() -> None:
    def wrapped(*at: int) -> Any:
        rows = [{"rank": r, "kind": Kind.WRAP, "phase": BEGIN, "step": n} for r, n in enumerate(at)]
        return case_of(events=table(rows))

    assert wrapped_at_other_steps(wrapped(40, 0)) and not wrapped_at_other_steps(wrapped(40, 40))


def row(since: int, value: float, wraps: int, optimizer: int = 1, step: int = 0) -> dict[str, Any]:
    subject = {"step": step, "since": since, "subject": [wraps, optimizer]}
    return {**subject, "elements": 4, "parameters": [["p", [4], value, 8.0]]}


def ranks_with(path: Path, *rows: list[dict[str, Any]]) -> CellEvidence:
    run = RunDir(path=path)
    for rank, each in enumerate(rows):
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": len(rows), "pid": 100 + rank})
        for one in each:
            append_json_line(run.rank(rank).replicas, one)
    return load_cell(path)


def test_what_a_rank_trained_by_itself_before_the_wrap_is_compared_with_nothing(tmp_path: Path) -> None:
    own = [row(0, 5.0, wraps=0), row(1, 6.0, wraps=0, step=1)]
    alike = ranks_with(
        tmp_path / "a",
        [*own, row(0, 1.0, 1, step=30), row(1, 2.0, 1, step=31)],
        [row(0, 1.0, 1), row(1, 2.0, 1)],
    )
    assert drift(alike) is None
    found = drift(
        ranks_with(
            tmp_path / "b",
            [*own, row(0, 1.0, 1, step=30), row(1, 2.0, 1, step=31)],
            [row(0, 1.0, 1), row(1, 2.5, 1)],
        )
    )
    assert found and (found.since, found.from_start) == (1, False)


def counted(since: int, value: float, issued: int, backwards: int, shadowed: int = 0) -> dict[str, Any]:
    """A look by a rank that had taken part in so many collectives of the job."""
    more = {"issued": issued, "backwards": backwards, "shadowed": shadowed}
    return {**row(since, value, wraps=1, step=since), **more}


def test_sums_of_one_step_that_ranks_made_at_other_moments_are_not_compared(tmp_path: Path) -> None:
    """Under Join, or where ranks go along by hand, a rank without data left makes fewer steps than its peers."""
    first = [counted(0, 1.0, 4, 1), counted(1, 2.0, 4, 1)]
    goes_on = [*first, counted(2, 3.0, 6, 2)]
    later = [*first, counted(2, 4.0, 26, 2)]
    assert drift(ranks_with(tmp_path / "by hand", goes_on, later)) is None
    # Both have gone along since, in other epochs: their optimizers know other gradients.
    both = [*first, counted(2, 3.0, 26, 2, 5)], [*first, counted(2, 4.0, 26, 2, 5)]
    assert drift(ranks_with(tmp_path / "join", *both)) is None
    apart = [*first, counted(2, 4.0, 6, 2)]
    found = drift(ranks_with(tmp_path / "apart", goes_on, apart))
    assert found and found.step == 2
    before = drift(ranks_with(tmp_path / "before", [*first[:1], counted(1, 2.5, 4, 1), goes_on[2]], later))
    assert before and before.step == 1


def test_sums_of_a_rank_that_left_out_a_step_are_compared(tmp_path: Path) -> None:
    """It has made a backward more by the same step, and reduced with its peers in each."""
    steps = [counted(0, 1.0, 2, 1), counted(4, 2.0, 10, 5)]
    skips = [counted(0, 1.0, 2, 1), counted(4, 2.5, 12, 6)]
    found = drift(ranks_with(tmp_path, steps, skips))
    assert found and found.step == 4


def with_buffers(path: Path, *codebooks: list[float]) -> Any:
    """Ranks whose parameters are equal, and whose codebook had these sums after steps 0, 1, 2, 4, ..."""
    rows = [
        [
            {**row(2**n // 2, 1.0 + n, 1, step=2**n // 2), "buffers": [["vq.embed", [8, 4], value, 10.0]]}
            for n, value in enumerate(values)
        ]
        for values in codebooks
    ]
    return case(cell=ranks_with(path, *rows))


def test_ranks_that_used_other_numbers_of_optimizers_are_not_compared(tmp_path: Path) -> None:
    """By hand there is no wrap to count from: rank 0's second optimizer is rank 1's first."""
    first = [row(0, 5.0, 0), row(1, 6.0, 0)]
    assert drift(ranks_with(tmp_path, [*first, row(0, 1.0, 0, 2)], [row(0, 1.0, 0), row(1, 2.0, 0)])) is None


def test_a_parameter_that_is_left_out_of_the_average_is_told(tmp_path: Path) -> None:
    both = cell(tmp_path, {0: [[1.0, 1.0], [2.0, 2.0]], 1: [[1.0, 1.0], [2.0, 2.5]]})
    assert kept_equal(both) == kept_equal(both, frozenset({"p0"})) == {"p0"}
    assert not kept_equal(both, frozenset({"p1"}))
    reduce = (0, Kind.COLLECTIVE, BEGIN, "all_reduce", 1, 4, "default_pg" + AT)
    (found,) = _left_out(case(reduce, cell=both), frozenset({"p0"}), None)
    assert found.where.parameter == "p1" and found.strength.value < 0.7
    experts = (0, Kind.COLLECTIVE, BEGIN, "all_to_all_single", 1, 4, "default_pg" + AT)
    assert not list(_left_out(case(reduce, experts, cell=both), frozenset({"p0"}), None))
    own = (0, Kind.COLLECTIVE, BEGIN, "all_reduce", 1, 4, "7" + AT)
    assert not list(_left_out(case(reduce, own, cell=both), frozenset({"p0"}), None))


def by_hand(number: int, before: list[int], after: list[int]) -> list[tuple[Any, ...]]:
    """A step of rank 0, with reductions of so many elements before and after the optimizer's own step."""
    reduced = {
        n: (0, Kind.COLLECTIVE, BEGIN, "all_reduce", 1, n, "default_pg" + AT) for n in (*before, *after)
    }
    backward = [(0, Kind.BACKWARD, phase, "", 0, 0, AT) for phase in (BEGIN, END)]
    used = [(0, Kind.OPTIMIZER, phase, "AdamW", 0, 0, "") for phase in (BEGIN, END)]
    return [*backward, *(reduced[n] for n in before), *used, step(number), *(reduced[n] for n in after)]


def test_gradients_are_averaged_by_hand_only_where_they_are_so_in_nearly_every_step(tmp_path: Path) -> None:
    alone = cell(tmp_path, {0: [[1.0] * 4, [2.0] * 4]})

    def averaged(*steps: list[tuple[Any, ...]]) -> set[str]:
        return set(names_averaged(case(*(event for each in steps for event in each), cell=alone))[0])

    each = [by_hand(n, [4], []) for n in range(8)]
    assert averaged(*each) == {"p0", "p1", "p2", "p3"}
    # Local SGD: once in four steps, four parameters of one size.
    rarely = [by_hand(n, [4, 4, 4, 4] if n % 4 == 3 else [], []) for n in range(8)]
    assert not averaged(*rarely)


def test_gradients_may_be_averaged_in_buckets_that_make_up_the_whole(tmp_path: Path) -> None:
    run = RunDir(path=tmp_path)
    make_private_dir(run.rank(0).path)
    write_json(run.rank(0).meta, {"rank": 0, "world_size": 1, "pid": 100})
    names = [[f"p{n}", [5, 5], 1.0, 8.0] for n in range(4)]
    append_json_line(run.rank(0).replicas, {"step": 0, "elements": 100, "parameters": names})

    def averaged(*buckets: int) -> frozenset[str]:
        steps = [event for n in range(8) for event in by_hand(n, list(buckets), [])]
        return names_averaged(case(*steps, cell=load_cell(tmp_path)))[0]

    assert averaged(60, 40, 1) == {"p0", "p1", "p2", "p3"}
    assert not averaged(60) and not averaged(60, 41)


def test_what_is_averaged_when_the_optimizer_is_done_is_the_model_and_not_its_gradients(
    tmp_path: Path,
) -> None:
    """Ranks that average their models then differ when the sums are taken, and are equal again in the next forward."""
    alone = cell(tmp_path, {0: [[1.0], [2.0]]})
    rows = [event for n in range(8) for event in by_hand(n, [], [4])]
    assert not names_averaged(case(*rows, cell=alone))[0]


def test_a_metric_of_the_size_of_a_small_parameter_is_no_average_of_gradients(tmp_path: Path) -> None:
    run = RunDir(path=tmp_path)
    for rank, value in ((0, 1.0), (1, 1.5)):
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
        for number in (0, 1):
            own = 1.0 + number * value
            sums = [["temperature", [1], own, 8.0], ["body", [64], own, 64.0]]
            append_json_line(run.rank(rank).replicas, {"step": number, "elements": 65, "parameters": sums})
    both = load_cell(tmp_path)

    def told(elements: int) -> list[str | None]:
        rows = [event for n in range(8) for event in by_hand(n, [elements], [])]
        everyone = [(rank, *event[1:]) for rank in (0, 1) for event in rows]
        return [found.where.parameter for found in _by_hand(case(*everyone, cell=both))]

    assert told(1) == []
    assert told(64) == ["body"]


def test_what_ddp_does_not_reduce_is_told_apart_by_magnitudes_where_the_sums_are_alike(
    tmp_path: Path,
) -> None:
    run = RunDir(path=tmp_path)
    for rank in (0, 1):
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
        head = [["body", [4], 1.0, 8.0], ["head", [4], 1.0, 8.0 + rank]]
        append_json_line(run.rank(rank).replicas, {"step": 4, "left_out": [1], "parameters": head})
    both = load_cell(tmp_path)
    reduce = (0, Kind.COLLECTIVE, BEGIN, "all_reduce", 1, 4, "default_pg" + AT)
    (found,) = _not_reduced(case(reduce, cell=both))
    assert found.where.parameter == "head" and "sum of magnitudes" in next(iter(found.evidence))
    assert drift(both) is None and not kept_equal(both, frozenset({"body"}))  # it never moved
    own = (0, Kind.COLLECTIVE, BEGIN, "all_reduce", 1, 4, "7" + AT)
    assert not list(_not_reduced(case(reduce, own, cell=both)))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("net.requires_grad_(False)\nfor p in net.body.parameters():\n    p.requires_grad_(True)\n", 3),
        ("p.requires_grad = name == 'head'\np.requires_grad = True\n", 2),
        ("net.requires_grad_()\n", 1),
        ("a.requires_grad_()\nb.requires_grad_()\n", None),
        ("net.requires_grad_(False)\n", None),
    ],
)
def test_the_line_that_makes_parameters_trainable(tmp_path: Path, source: str, line: int | None) -> None:
    both = dataclasses.replace(cell(tmp_path, {0: [[1.0]], 1: [[1.0]]}), sources={"/job/train.py": source})
    found = thawed(both.code)
    assert (found and found.line) == line


def test_what_is_trained_beside_the_units_of_fsdp2_is_told(tmp_path: Path) -> None:
    cell(tmp_path, {0: [[1.0], [2.0]], 1: [[1.0], [2.5]]})
    run = RunDir(path=tmp_path)
    for rank in (0, 1):
        write_json(
            run.rank(rank).units,
            [{"unit": "blocks.0", "kind": "FSDP2", "parameters": [], "group": "default_pg", "ranks": [0, 1]}],
        )
    both = load_cell(tmp_path)
    gather = (0, Kind.COLLECTIVE, BEGIN, "all_gather_single", 1, 4, "default_pg" + AT)
    (found,) = _beside_units(case(gather, cell=both))
    assert (found.where.parameter, found.guilty_ranks) == ("p0", (0, 1))
    own = (0, Kind.COLLECTIVE, BEGIN, "all_gather_single", 1, 4, "7" + AT)
    assert not list(_beside_units(case(gather, own, cell=both)))  # a second dimension of the mesh
    for rank in (0, 1):
        write_json(run.rank(rank).units, [{"unit": "blocks.0", "kind": "FSDP1", "parameters": []}])
    assert not list(_beside_units(case(gather, cell=load_cell(tmp_path))))  # its shards look just like that


def trained(step: int, wrapped: bool, backward: str = AT) -> list[dict[str, Any]]:
    """One step of rank 0 by the loop of line 9, through DDP's wrapper or past it, where a forward is not seen."""
    forward = {"kind": Kind.FORWARD, "name": "DistributedDataParallel", "label": AT}
    did = [forward] * wrapped + [{"kind": Kind.BACKWARD, "name": "", "label": backward}]
    return [{"rank": 0, "phase": BEGIN, "step": step, **event} for event in did]


PASSED_BY = "from step 4 on its wrapper is bypassed, and each rank trains a model of its own"


def apart_from(step: int) -> Drift:
    """Copies that are known to differ since then."""
    values = {0: 1.0, 1: 2.0}
    return Drift(step=step, wraps=1, since=step, parameter="p0", values=values, from_start=False, odd=(0, 1), gap=1.0)  # fmt: skip


def test_a_wrapper_that_is_passed_by_from_some_step_on_is_told() -> None:
    def left(*steps: list[dict[str, Any]], until: int = 8) -> Any:
        frame = events(event for each in steps for event in each)
        why = _left(case_of(events=frame), 0, apart_from(until))
        return why and (why.says, why.place and why.place.line)

    begun = [trained(n, True) for n in range(4)]
    found = left(*begun, *(trained(n, False) for n in range(4, 12)))
    assert found == (PASSED_BY, 9)
    elsewhere = "\t/home/u/train.py:30:tune"
    found = left(*begun, *(trained(n, False, elsewhere) for n in range(4, 12)))
    assert found == (PASSED_BY, 30)
    assert left(*begun, *(trained(n, False) for n in range(4, 12)), until=4) is None  # apart before that
    assert left(*(trained(n, n % 2 == 0) for n in range(12))) is None  # another model's backward in between
    assert left(*begun, *(trained(n, True) for n in range(4, 12))) is None


def test_samples_that_wait_for_peers_are_none_of_the_work_and_a_lambda_counts_for_its_line() -> None:
    wait = ["/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"]
    sort, inner, other = (["/u/t.py", *rest] for rest in ((8, "sample"), (8, "sample.<lambda>"), (5, "push")))
    assert waits_for_peers(sample(wait, sort))
    assert not waits_for_peers(sample(sort, wait))
    seen = most_seen(map(sample, (other, other, sort, inner, sort)))
    assert seen and (seen.line, seen.function) == (8, "sample")


def loss(rank: int, lost: bool, at: int = 0) -> tuple[Any, ...]:
    return (rank, Kind.BACKWARD, BEGIN, "", int(lost), 0, AT, at)


def test_the_rank_whose_loss_was_nan_first_is_guilty_of_nan_everywhere(tmp_path: Path) -> None:
    nan = math.nan
    both = cell(tmp_path, {r: [[1.0], [2.0], [nan]] for r in (0, 1)})
    rows = [loss(0, False), loss(1, True), step(1), step(1, 1), loss(0, True, 1), loss(1, True, 1)]
    (found,) = findings(nonfinite, case(*rows, cell=both))
    assert (found.cls, found.guilty_ranks, found.where.step, found.where.line) == (
        "silently_wrong", (1,), 0, 9,
    )  # fmt: skip


def test_a_parameter_that_is_infinite_from_the_start_is_meant_so_and_a_lost_batch_harms_nobody(
    tmp_path: Path,
) -> None:
    both = cell(tmp_path, {r: [[-math.inf], [-math.inf]] for r in (0, 1)})
    assert not findings(nonfinite, case(loss(0, True), step(1), loss(0, False), step(2), cell=both))


@pytest.mark.parametrize(
    ("loss", "lost"),
    [
        (torch.tensor(math.nan), True),
        (torch.tensor([math.inf]), True),
        (torch.tensor(complex(0, math.inf)), True),
        (torch.tensor(1j), False),
        (torch.tensor(1.0), False),
        (torch.full((2,), math.nan), False),
        ([torch.tensor(math.nan)], False),
        (torch.empty((), device="meta"), False),
    ],
)
def test_only_a_single_number_on_the_cpu_is_read_as_a_loss(
    monkeypatch: pytest.MonkeyPatch, loss: Any, lost: bool
) -> None:
    said: list[tuple[int, ...]] = []
    rank = SimpleNamespace(places=SimpleNamespace(here=lambda: 7), emit=lambda *event: said.append(event))
    monkeypatch.setattr(session.recorded, "rank", rank)
    monkeypatch.setattr(now, "counting", False)
    _begin(loss)
    assert said == [(Kind.BACKWARD, BEGIN, 0, lost, 0, 7)]


JOINED = """
import torch, torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for epoch in range(2):
    with Join([model]):
        for _ in range((5, 12)[dist.get_rank()]):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_that_have_other_numbers_of_batches_under_join_are_no_replicas_that_part(
    warm_jobs: WarmJobs, tmp_path: Path
) -> None:
    verdict = warm_jobs.judged(JOINED, tmp_path)
    assert verdict["class"] == "healthy", verdict["summary"]
    cell = load_cell(tmp_path / "run")
    assert not cell.gaps and drift(cell, in_step=False), "their sums do differ"
    # What is noted at the end, without sums, is behind the second loop as well.
    assert max(row.shadowed for row in cell.ranks[0].replicas if row.parameters) == 7


def test_of_two_models_in_ddp_the_one_that_parts_is_asked_whether_it_was_reduced(tmp_path: Path) -> None:
    both = cell(tmp_path, {0: [[1.0]], 1: [[2.0]]})

    def model(name: str, elements: int, rebuilt: bool) -> WrappedModel:
        buckets = (Bucket(index=0, parameters=(0,), elements=elements),)
        parameter = Parameter(name=name, shape=(elements,), dtype="torch.float32")
        return WrappedModel(
            parameters=(parameter,), buckets=buckets, rebuilt_buckets=buckets if rebuilt else ()
        )

    models = (model("net.weight", 30, True), model("out.weight", 8, False))
    ranks = tuple(dataclasses.replace(rank, ddp=models) for rank in both.ranks)
    both = dataclasses.replace(both, ranks=ranks)
    none: Any = SimpleNamespace(cell=both, calls=table([], ["op", "input_sizes"]))
    assert not _were_reduced(none, "out.weight")
    assert not _were_reduced(none, "weight")  # a part called by itself: as large as what was compared
    assert _were_reduced(none, "net.weight")
