"""A hang is proven where only ranks that wait themselves could wake the waiting ones, else suspected."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import GOLDEN, unpack
from support.promises import promises

from nsadiag.analysis.scale.digests.cell import load_cell
from nsadiag.analysis.verdict import judge

RECORDINGS = {path.name.partition(".tar")[0]: path for path in sorted(GOLDEN.rglob("*.tar.*z"))}
# Of scripts that are recorded on GPUs as well, with other stacks and recorders than on gloo.
PROVEN_ON_GPUS = {
    "nccl_collective_args_mismatch_broadcast_source",
    "nccl_collective_order_mismatch_two_groups",
    "nccl_ddp_unused_parameter_last_batch",
    "nccl_divergent_module_execution_experts",
    "nccl_missing_rank_stuck_in_queue",
    "nccl_missing_rank_uneven_batches",
    "nccl_p2p_mismatch_both_send_first",
    "nccl_p2p_mismatch_empty_micro_batch",
    "nccl_p2p_mismatch_group_rank",
    "nccl_p2p_mismatch_micro_batches",
    "nccl_process_group_mismatch_monitor_group",
    "nccl_rank_exception_finally_barrier",
    "nccl_rank_exited_early",
    "nccl_uneven_inputs_iterable",
}
PROMISED = {promise.name: promise.certainty for promise in promises()}


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recorded_hang_is_as_certain_as_its_waits(name: str, tmp_path: Path) -> None:
    verdict = judge(load_cell(unpack(RECORDINGS[name], tmp_path).path))
    if verdict.outcome != "hung":
        assert verdict.certainty is None
        return
    on_gpus = "proven" if name in PROVEN_ON_GPUS else "suspected"
    assert verdict.certainty == (on_gpus if name.startswith("nccl_") else PROMISED[name])
    proofs = [each.claim for each in verdict.evidence if each.claim.startswith("nothing can wake them: ")]
    assert len(proofs) == (verdict.certainty == "proven")


def test_every_proven_hang_is_recorded() -> None:
    assert set(RECORDINGS) >= PROVEN_ON_GPUS
