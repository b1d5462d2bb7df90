"""A kernel that is no collective never ends: the host waits for the GPU, and the peers for the rank."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.device_queue import computes_before
from nsadiag.analysis.facts.quiet_time import in_one_place_s
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks
from nsadiag.analysis.relations.pending import is_still, was_given_up
from nsadiag.analysis.rules.drafts import inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.watch import RankMotion
from nsadiag.evidence.records import Strength

WAITS_FOR_GPU = re.compile(
    r"cu(da)?(Stream|Event|Ctx|Device)Synchronize|cu(da)?Mem(cpy|set)|cuLaunchKernel|cudaLaunchKernel"
    r"|c10::cuda|at::native::_local_scalar_dense_cuda|_cuda_synchronize|THCPEvent_synchronize|THCPStream_synchronize"
)
PYTHON_WAITS = re.compile(r"torch/cuda/(__init__|streams)\.py$")
# Of this process, where others on the same GPU take their shares of it.
GPU_WORKS_PCT = 10.0
# Lines that wait for the device in C, where no Python frame shows it.
ASKS_DEVICE = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|nonzero)\(")


def _waits_for_gpu(blocked: BlockedRank) -> str | None:
    """The call in which the host waits for its GPU."""
    native = next((name for name in blocked.state.inner if WAITS_FOR_GPU.search(name)), None)
    if native:
        return native
    frames = blocked.capture.main_frames
    called = next((f.name for f in frames[:3] if PYTHON_WAITS.search(f.filename)), None)
    asks = ASKS_DEVICE.search((blocked.state.place and blocked.state.place.code) or "")
    return called or (asks[0].strip(".(") if asks else None)


def _motions(cell: CellEvidence, rank: int) -> list[RankMotion]:
    """The rank's, of every snapshot since anything last moved."""
    moved = cell.watch.last_progress_s or 0.0
    looks = [look for look in cell.watch.looks if look.t_s >= moved]
    return [motion for look in looks if (motion := look.of(rank))]


def _busy_pct(motions: list[RankMotion]) -> float:
    """Median share of the GPU that the process had; 0 where nobody could say."""
    known = [m.gpu_pct for m in motions if m.gpu_pct is not None]
    return statistics.median(known) if known else 0.0


def _has_queued(case: Case, rank: int) -> bool:
    """Whether a collective of its own is under way: its kernel spins as well, for a peer that does not come."""
    mine = case.calls[case.calls["rank"] == rank]
    return bool(mine.pending.astype(bool).any()) and not computes_before(case.cell.rank(rank))


def gpu_kernel_hang(case: Case) -> Iterator[Draft | Declined]:
    for blocked in blocked_ranks(case):
        motions = _motions(case.cell, blocked.number)
        busy = _busy_pct(motions)
        if busy < GPU_WORKS_PCT or blocked.state.place is None:
            if motions:
                yield Declined(f"rank {blocked.number} kept its GPU {busy:.0f} % busy", "watch.json#looks")
            continue
        # A communicator that is being made spins, and leaves no trace in NCCL's recorder.
        if blocked.state.waits_for_peers:
            continue
        call, lasted = _waits_for_gpu(blocked), in_one_place_s(case.cell, blocked.rank)
        if call is None and not (motions[-1].main_cpu_share or 0.0) > 0.5:
            continue
        # A busy GPU is work until it has been at it for far longer than anything before.
        if not (lasted and (is_still(case.cell) or was_given_up(case.cell))) or _has_queued(
            case, blocked.number
        ):
            continue
        number, at = blocked.number, locations.short(blocked.state.place)
        yield inside_rank(
            case.cell,
            blocked,
            # At --timeout the two snapshots only say that it was still at it.
            strength=Strength.STRONG if call and is_still(case.cell) else Strength.WEAK,
            summary=f"The GPU of rank {number} has been busy for {lasted:.0f} s with what was launched before {at}, where the host waits for it.",
            evidence={
                f"rank {number} is at {at} in every snapshot"
                + (f", in {call}" if call else ""): blocked.source,
                f"its GPU is {busy:.0f} % busy with what is of this rank, at the median of {len(motions)} snapshots, and has begun no collective that it has not ended": "watch.json#looks",
            },
            fix="Look for a loop in a kernel that this rank has launched (Triton, CUDA extensions): its exit may depend on data that never comes.",
            next_step="CUDA_LAUNCH_BLOCKING=1 nsadiag run -- <the same command>, to see the launch that does not return",
        )
    yield from blocked_elsewhere(case)


RULE = Rule(
    name="gpu_kernel_hang",
    concludes=("gpu_kernel_hang",),
    means={"gpu_kernel_hang": "A kernel that is no collective never ends."},
    family="blocked",
    detected="the host waits for a GPU of which its own process has 10 % or more, at the median of the snapshots since the silence began, without a collective that the device has begun (the host may have issued one), for ten times the longest pause before and 20 s, until the job was given up",
    fix="Look for a loop in a kernel that this rank has launched: its exit may depend on data that never comes.",
    check=gpu_kernel_hang,
    needs=("stacks", "looks"),
    explained_by=("livelock_user_code",),
    confused_with=("network_stall", "slow_compute", "missing_rank"),
)
