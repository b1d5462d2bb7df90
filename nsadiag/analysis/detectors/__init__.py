"""One cause a file, in causal order: a detector further up explains what those below it see.

A detector is a function from a cell's evidence to findings, each pointing at a file that anyone can open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nsadiag.analysis.detectors.async_work_not_waited import async_work_not_waited
from nsadiag.analysis.detectors.collective_args_mismatch import collective_args_mismatch
from nsadiag.analysis.detectors.collective_order_mismatch import (
    collective_order_crash,
    collective_order_mismatch,
    collective_order_refused,
)
from nsadiag.analysis.detectors.data_divergent_control_flow import data_divergent_control_flow
from nsadiag.analysis.detectors.dataloader_worker_fault import dataloader_worker_fault
from nsadiag.analysis.detectors.ddp_ready_twice import ddp_ready_twice
from nsadiag.analysis.detectors.ddp_static_graph_violation import ddp_static_graph_violation
from nsadiag.analysis.detectors.ddp_unused_parameter import ddp_unused_parameter
from nsadiag.analysis.detectors.divergent_module_execution import (
    divergent_module_execution,
    divergent_units,
)
from nsadiag.analysis.detectors.external_wait import external_wait
from nsadiag.analysis.detectors.gil_held_native_call import gil_held_native_call
from nsadiag.analysis.detectors.gpu_kernel_hang import gpu_kernel_hang
from nsadiag.analysis.detectors.grad_sync_mismatch import grad_sync_mismatch
from nsadiag.analysis.detectors.healthy import healthy
from nsadiag.analysis.detectors.io_stall import io_stall
from nsadiag.analysis.detectors.livelock_user_code import livelock_user_code
from nsadiag.analysis.detectors.local_lock_deadlock import local_lock_deadlock
from nsadiag.analysis.detectors.lost_host import lost_host
from nsadiag.analysis.detectors.missing_rank import missing_rank, stopped_rank
from nsadiag.analysis.detectors.model_structure_mismatch import model_structure_mismatch
from nsadiag.analysis.detectors.network_stall import network_stall
from nsadiag.analysis.detectors.never_joined import never_joined
from nsadiag.analysis.detectors.p2p_mismatch import p2p_mismatch
from nsadiag.analysis.detectors.process_group_mismatch import process_group_mismatch
from nsadiag.analysis.detectors.rank_conditional_collective import rank_conditional_collective
from nsadiag.analysis.detectors.rank_exception import rank_exception
from nsadiag.analysis.detectors.rank_exited_early import rank_exited_early
from nsadiag.analysis.detectors.rank_killed import rank_killed
from nsadiag.analysis.detectors.rendezvous_mismatch import rendezvous_mismatch
from nsadiag.analysis.detectors.silently_wrong import silently_wrong
from nsadiag.analysis.detectors.slow_compute import slow_compute
from nsadiag.analysis.detectors.straggler_rank import straggler_rank
from nsadiag.analysis.detectors.teardown_hang import teardown_hang
from nsadiag.analysis.detectors.uneven_inputs import uneven_inputs
from nsadiag.analysis.detectors.unknown import unknown
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Finding

Detector = Callable[[CellEvidence, Tables], Iterator[Finding]]

DETECTORS: tuple[Detector, ...] = (
    # What the transport then says, or dies of, is a consequence.
    model_structure_mismatch,
    # Units of other modules have other sizes.
    divergent_module_execution,
    collective_args_mismatch,
    process_group_mismatch,
    # Not of its own doing: where it stood when it was stopped explains nothing.
    stopped_rank,
    # Ranks that part in the user's own source: what is raised or killed then only says that they did.
    grad_sync_mismatch,
    rank_conditional_collective,
    data_divergent_control_flow,
    uneven_inputs,
    divergent_units,
    collective_order_crash,
    # Whatever ended the others then: they waited for one that had broken.
    never_joined,
    rank_killed,
    # These are exceptions as well, with a cause that has a name.
    dataloader_worker_fault,
    ddp_ready_twice,
    ddp_static_graph_violation,
    ddp_unused_parameter,
    rank_exception,
    # Whatever is missing of its ranks was not missing before it.
    lost_host,
    # Its peers have ended already: not early, but in time.
    teardown_hang,
    rank_exited_early,
    # A rank that stands inside itself explains whatever its peers wait in.
    gil_held_native_call,
    io_stall,
    external_wait,
    local_lock_deadlock,
    livelock_user_code,
    gpu_kernel_hang,
    rendezvous_mismatch,
    p2p_mismatch,
    collective_order_mismatch,
    collective_order_refused,
    missing_rank,
    network_stall,
    # Completed or not, what it trained is wrong.
    async_work_not_waited,
    silently_wrong,
    straggler_rank,
    slow_compute,
    healthy,
    unknown,
)
