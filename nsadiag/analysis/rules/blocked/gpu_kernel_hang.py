"""A GPU kernel, not a collective's, that never ends: the host waits for the GPU, and the peers wait for the rank."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.device_queue import computes_before
from nsadiag.analysis.facts.quiet_time import in_one_place_s
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks
from nsadiag.analysis.relations.pending import is_still, was_given_up
from nsadiag.analysis.rules.drafts import at_line, inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.watch import RankMotion
from nsadiag.evidence.records import Strength

WAITS_FOR_GPU = re.compile(
    r"cu(da)?(Stream|Event|Ctx|Device)Synchronize|cu(da)?Mem(cpy|set)|cuLaunchKernel|cudaLaunchKernel"
    r"|c10::cuda|at::native::_local_scalar_dense_cuda|_cuda_synchronize|THCPEvent_synchronize|THCPStream_synchronize"
)
PYTHON_WAITS = re.compile(r"torch/cuda/(__init__|streams)\.py$")
# Share of this process, since others may use the same GPU.
GPU_WORKS_PCT = 10.0
SPINS = 0.5  # share of a CPU
# Calls that wait for the device in native code, without a Python frame.
ASKS_DEVICE = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|nonzero)\(")


def gpu_kernel_hang(case: Case) -> Iterator[Draft | Declined]:
    for blocked in blocked_ranks(case):
        motions = _motions(case.cell, blocked.number)
        known = [motion.gpu_pct for motion in motions if motion.gpu_pct is not None]
        busy_pct = statistics.median(known) if known else 0.0
        # The creation of a communicator spins too, and leaves no trace in NCCL's recorder.
        if busy_pct >= GPU_WORKS_PCT and blocked.state.place and not blocked.state.waits_for_peers:
            yield from _of_rank(case, blocked, motions, busy_pct)
        elif motions:
            yield Declined(f"rank {blocked.number} kept its GPU {busy_pct:.0f} % busy", "watch.json#looks")
    yield from blocked_elsewhere(case)


def _motions(cell: CellEvidence, rank: int) -> list[RankMotion]:
    """The rank's captures in every snapshot of the silence."""
    moved_s = cell.watch.last_progress_s or 0.0
    return [motion for look in cell.watch.looks if look.t_s >= moved_s and (motion := look.of(rank))]


def _of_rank(case: Case, blocked: BlockedRank, motions: list[RankMotion], busy_pct: float) -> Iterator[Draft]:
    call, is_still_hung = _waits_for_gpu(blocked), is_still(case.cell)
    # A busy GPU counts as work until it has been busy far longer than ever before.
    lasted = in_one_place_s(case.cell, blocked.rank)
    if not lasted or not (is_still_hung or was_given_up(case.cell)) or _has_queued(case, blocked.number):
        return
    if call is None and (motions[-1].main_cpu_share or 0.0) <= SPINS:
        return
    number, at = blocked.number, at_line(blocked.state.place)
    yield inside_rank(
        case.cell,
        blocked,
        # At --timeout the two snapshots only show that it was still busy.
        strength=Strength.STRONG if call and is_still_hung else Strength.WEAK,
        summary=f"The GPU of rank {number} has been busy for {lasted:.0f} s with a kernel launched before{at.removeprefix(' at')}, where the host waits for it.",
        evidence={
            f"rank {number} is{at} in every snapshot{f', in {call}' if call else ''}": blocked.source,
            f"this rank keeps its GPU {busy_pct:.0f} % busy (median of {len(motions)} snapshots), and no collective on it is unfinished": "watch.json#looks",
        },
        next_step="CUDA_LAUNCH_BLOCKING=1 nsadiag run -- <the same command>, to see the launch that does not return",
    )


def _waits_for_gpu(blocked: BlockedRank) -> str | None:
    """The native call in which the host waits for its GPU."""
    native = next((name for name in blocked.state.inner if WAITS_FOR_GPU.search(name)), None)
    frames = blocked.capture.main_frames[:3]
    called = next((f.name for f in frames if PYTHON_WAITS.search(f.filename)), None)
    asks = ASKS_DEVICE.search((blocked.state.place and blocked.state.place.code) or "")
    return native or called or (asks[1] if asks else None)


def _has_queued(case: Case, rank: int) -> bool:
    """Whether a collective has begun on its device: such a kernel spins too, waiting for a peer."""
    mine = case.calls[case.calls["rank"] == rank]
    return bool(mine.pending.astype(bool).any()) and not computes_before(case.cell.rank(rank))


RULE = Rule(
    means={"gpu_kernel_hang": "A GPU kernel that is not a collective never ends."},
    family="blocked",
    detected="The host waits for a GPU that its own process keeps at least 10 % busy, by the median of the snapshots since the silence began. No collective has begun on the device, though the host may have issued one. This has lasted for at least 20 s and ten times the longest pause before, until the job was given up.",
    fix="Look for a loop in a kernel that this rank launched (Triton, CUDA extensions): its exit condition may never become true.",
    check=gpu_kernel_hang,
    needs=("stacks", "looks"),
    explained_by=("livelock_user_code",),
    confused_with=("network_stall", "slow_compute", "missing_rank"),
)
