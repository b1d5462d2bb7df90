"""The classes of verdict in causal order, and what each says happened."""

from __future__ import annotations

CLASSES: dict[str, str] = {
    # A rank is gone or broke.
    "rank_exception": "A rank raised; peers that wait or fail afterwards are victims.",
    "gpu_oom": "The GPU's allocator found no memory.",
    "rank_killed": "A signal ended a rank.",
    "host_oom": "The kernel ended a rank because the host, or its cgroup, had no memory left.",
    "rank_exited_early": "A rank ended cleanly while its peers still needed it.",
    "dataloader_worker_fault": "A data loader's worker is dead or stuck, and its rank waits for it.",
    # Before or around the process group.
    "rendezvous_mismatch": "The ranks never met: some never came, or were told another size or address.",
    "process_group_mismatch": "Sub-groups were made by some ranks only, in another order or with other members.",
    "model_structure_mismatch": "The ranks wrapped models whose parameters or buffers differ.",
    "external_wait": "A rank waits for something outside the job: a file, a socket, a store key, a process.",
    # DDP and autograd.
    "ddp_ready_twice": "DDP saw a parameter's gradient twice in one backward pass.",
    "ddp_unused_parameter": "DDP waits for parameters that this forward did not use.",
    "ddp_static_graph_violation": "The graph changed although DDP was told that it is static.",
    "async_work_not_waited": "Asynchronous work was never waited for, or its buffers were used too early.",
    # Ranks disagree on what comes next.
    "collective_args_mismatch": "Ranks issued the same collective with other sizes, types, splits or root.",
    "collective_order_mismatch": "Ranks issued different collectives at the same place in a group's order.",
    "p2p_mismatch": "Sends and receives do not match, or wait for each other in a cycle.",
    "grad_sync_mismatch": "Ranks synchronise gradients at different steps: no_sync or accumulation differ.",
    "rank_conditional_collective": "A branch on the rank enters or skips a collective.",
    "data_divergent_control_flow": "A branch on a rank's own data enters or skips a collective.",
    "divergent_module_execution": "Ranks run different modules in one step.",
    "uneven_inputs": "Ranks ran different numbers of batches or steps.",
    "missing_rank": "A live rank never comes to a collective that its peers wait in, and nothing shows why.",
    # Inside one rank.
    "local_lock_deadlock": "A thread waits for a lock or queue that its holder will never release.",
    "gil_held_native_call": "A native call holds the GIL, so that no Python thread of the rank runs.",
    "livelock_user_code": "A rank is busy in a loop of its own code that never ends.",
    "io_stall": "A rank is in a save or a load that does not advance.",
    "gpu_kernel_hang": "A kernel that is no collective never ends.",
    "network_stall": "Every member issued the same collective, and none finishes.",
    "teardown_hang": "A rank is stuck at its end, after the work is done.",
    # Not stuck.
    "straggler_rank": "All progress; one rank takes much longer than its peers, who wait for it.",
    "slow_compute": "All progress, far below what their own earlier steps predict.",
    "silently_wrong": "It completed, and gradients, loss or replicas are not what they should be.",
    "healthy": "It completed, or progresses at its own rhythm.",
    "unknown": "What is there does not tell; what is missing, and what would tell.",
}
