"""A hang is proven where only ranks that wait themselves could wake the waiting ones, else suspected."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import GOLDEN, unpack

from nsadiag.analysis.scale.digests.cell import load_cell
from nsadiag.analysis.verdict import judge

RECORDINGS = {path.name.partition(".tar")[0]: path for path in sorted(GOLDEN.rglob("*.tar.*z"))}
# All other recorded hangs are suspected: some rank computes, sleeps, reads, or waits for the world outside the job.
PROVEN = {
    "collective_args_mismatch_broadcast_source",
    "collective_order_mismatch_background_save",
    "collective_order_mismatch_gradient_hooks",
    "collective_order_mismatch_task_heads",
    "collective_order_mismatch_two_groups",
    "data_divergent_best_checkpoint",
    "data_divergent_early_stop",
    "data_divergent_enough_accuracy",
    "data_divergent_nan_batch",
    "data_divergent_short_recording",
    "ddp_unused_parameter_last_batch",
    "external_wait_store_key",
    "gil_held_native_call_join",
    "grad_sync_mismatch_auto_accumulation",
    "external_wait_beside_own_lock",  # the lock is the rank's own: whatever the server does, that rank stays
    "grad_sync_mismatch_fsdp_tokens",
    "grad_sync_mismatch_last_batch",
    "local_lock_deadlock_dropped_record",
    "local_lock_deadlock_gradient_hook",
    "local_lock_deadlock_lock_order",
    "local_lock_deadlock_signal_handler",
    "missing_rank_suspended",
    "missing_rank_throttled",
    "nccl_collective_args_mismatch_broadcast_source",
    "nccl_collective_order_mismatch_two_groups",
    "nccl_ddp_unused_parameter_last_batch",
    "nccl_divergent_module_execution_experts",
    "nccl_missing_rank_uneven_batches",
    "nccl_missing_rank_stuck_in_queue",
    "nccl_p2p_mismatch_both_send_first",
    "nccl_p2p_mismatch_empty_micro_batch",
    "nccl_p2p_mismatch_group_rank",
    "nccl_p2p_mismatch_micro_batches",
    "nccl_process_group_mismatch_monitor_group",
    "nccl_rank_exception_finally_barrier",
    "nccl_rank_exited_early",
    "nccl_uneven_inputs_iterable",
    "p2p_mismatch_both_send_first",
    "p2p_mismatch_group_rank",
    "p2p_mismatch_micro_batches",
    "p2p_mismatch_tag_drift",
    "process_group_mismatch_monitor_group",
    "rank_conditional_epoch_metric",
    "rank_conditional_validation",
    "rank_exception_finally_barrier",
    "rank_exception_writer_thread",
    "teardown_hang_pool",
    "uneven_inputs_own_loader",
    "uneven_inputs_shards",
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recorded_hang_is_as_certain_as_its_waits(name: str, tmp_path: Path) -> None:
    verdict = judge(load_cell(unpack(RECORDINGS[name], tmp_path).path))
    if verdict.outcome != "hung":
        assert verdict.certainty is None
        return
    assert verdict.certainty == ("proven" if name in PROVEN else "suspected")
    proofs = [each.claim for each in verdict.evidence if each.claim.startswith("nothing can wake them: ")]
    assert len(proofs) == (verdict.certainty == "proven")


def test_every_proven_hang_is_recorded() -> None:
    assert set(RECORDINGS) >= PROVEN
