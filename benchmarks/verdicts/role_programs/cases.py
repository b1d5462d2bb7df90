"""The cases: which roles run, and for the faulty ones who holds the job up, by which class and line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """`roles` are guilty, any of `classes` is right, and the line holds any of `code`. Healthy ones have none."""

    trainer: str = "trainer.py"  # or trainer_files.py, beside an orchestrator; or none
    engine: str = "engine.py"  # or engine_async.py
    engines: tuple[str, ...] = ("engine",)
    roles: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    backend: str = ""  # the only one under which it hangs
    after: str = ""  # the public thread that it was written after


CYCLE = ("actor_call_cycle",)
FILES, LOOP = "trainer_files.py", "engine_async.py"
CASES: dict[str, Case] = {
    "engine_loop_dies": Case(
        roles=("engine",), classes=("local_lock_deadlock",), code=("answer.get()",), after="vllm-project/vllm#5901",
    ),
    "paused": Case(
        roles=("engine",), classes=("local_lock_deadlock",), code=("self.running.wait()",),
        after="PrimeIntellect-ai/prime-rl#2815",
    ),
    "extra_tensor": Case(
        roles=("engine", "trainer"), classes=CYCLE, code=("torch.zeros(1), 0, group", "each.result()", "urlopen(request(engine, path"),
        after="sgl-project/sglang#4096",
    ),
    "update_refused": Case(
        roles=("engine",), classes=("missing_rank",), code=("dist.broadcast(parameter.data", "serve_forever"),
        after="huggingface/trl#6913",
    ),
    "refused_first": Case(
        roles=("engine",), classes=("missing_rank",), code=("dist.broadcast(parameter.data", "serve_forever"),
        after="huggingface/trl#6913",
    ),
    "asked_while_updating": Case(
        roles=("engine", "trainer"), classes=CYCLE, code=('"/health")).read()',), after="allenai/open-instruct#1454",
    ),
    "one_too_many": Case(
        roles=("trainer", "engine"), classes=("rendezvous_mismatch", "missing_rank"),
        code=("dist.rendezvous(", "weights_group(", "_new_process_group_helper", "dist.broadcast(parameter.data"),
        after="huggingface/trl#2923",
    ),
    "join_refused": Case(
        roles=("trainer", "engine"), classes=("rendezvous_mismatch", "missing_rank"),
        code=("weights_group(", "_new_process_group_helper", "dist.broadcast(parameter.data", "serve_forever"),
        after="verl-project/verl#3391",
    ),
    "other_sizes": Case(
        backend="nccl",  # gloo says so
        roles=("trainer", "engine"), classes=("collective_args_mismatch", "missing_rank", "network_stall", *CYCLE),
        code=("dist.broadcast(parameter.data", "torch.cuda.synchronize()", "each.result()"), after="huggingface/trl#2923",
    ),
    "opposite_order": Case(
        engines=("engine0", "engine1"), roles=("trainer", "engine0", "engine1"),
        classes=(*CYCLE, "rendezvous_mismatch"), code=("with self.one_at_a_time", "weights_group(", "dist.rendezvous(", "_new_process_group_helper"),
        after="THUDM/slime#2331",
    ),
    "logger_lock": Case(
        roles=("trainer",), classes=("local_lock_deadlock",), code=("written.wait()",), after="huggingface/trl#3676",
    ),
    "skipped_gather": Case(
        roles=("trainer",), classes=("missing_rank", *CYCLE, "collective_order_mismatch", "rank_conditional_collective"),
        code=("dist.barrier()", "dist.all_gather("), after="huggingface/trl#6765",
    ),
    "worker_not_ready": Case(
        roles=("engine",), classes=("rendezvous_mismatch", "missing_rank"), code=("dist.init_process_group(",),
        after="verl-project/verl#3391",
    ),
    "resumed": Case(
        trainer=FILES, roles=("engine", "orchestrator", "trainer_files"), classes=CYCLE,
        code=("time.sleep(0.5)", '"/update_weights"', '"/join"', "dist.rendezvous("), after="PrimeIntellect-ai/prime-rl#3016",
    ),
    "stale_marker": Case(
        trainer=FILES, roles=("orchestrator", "trainer_files"), classes=CYCLE, code=("time.sleep(0.5)",),
        after="PrimeIntellect-ai/prime-rl#1909",
    ),
    "reward_cycle": Case(
        trainer=FILES, roles=("engine", "orchestrator"), classes=CYCLE, code=('"/generate"', '"/reward"', '"/score"'),
        after="NVIDIA-NeMo/RL",
    ),
    "policy_guard": Case(
        trainer=FILES, roles=("engine", "trainer_files", "orchestrator"), classes=CYCLE,
        code=("time.sleep(0.5)", '"/generate"'), after="PrimeIntellect-ai/prime-rl#1857",
    ),
    "publisher_lock": Case(
        trainer=FILES, roles=("trainer_files",), classes=("local_lock_deadlock",), code=("threading.Event().wait()",),
        after="THUDM/slime#674",
    ),
    "verifier_dies": Case(
        trainer=FILES, roles=("orchestrator",), classes=("local_lock_deadlock",), code=("scores.get()",),
        after="PrimeIntellect-ai/prime-rl#1630",
    ),
    "lost_key": Case(
        roles=("engine",), classes=("local_lock_deadlock",), code=("threading.Event().wait()",),
    ),
    "output_thread_dies": Case(
        engine=LOOP, roles=("engine_async",), classes=("local_lock_deadlock", *CYCLE),
        code=("self.requests.get()", "core.requests.get()", "asks.recv_pyobj()", "self.answers.recv_pyobj()", "return await answer"),
        after="vllm-project/vllm#40926",
    ),
    "worker_in_shm": Case(
        engine=LOOP, roles=("engine_async",), classes=("local_lock_deadlock",), code=("threading.Event().wait()",),
        after="vllm-project/vllm#27313",
    ),
    "lost_block": Case(
        engine=LOOP, roles=("engine_async",), classes=CYCLE, code=("time.sleep(0.05)", "block.buf[0] !="), after="vllm-project/vllm#50835",
    ),
    "paused_writer": Case(
        engine=LOOP, roles=("engine_async", "trainer"), classes=("local_lock_deadlock", *CYCLE),
        code=("await self.running.wait()", "self.changed.wait_for("), after="sgl-project/sglang#22290",
    ),
    "blocked_loop": Case(
        engine=LOOP, roles=("engine_async",), classes=CYCLE, code=('"/reward"',), after="openJiuwen-ai/agent-core#763",
    ),
    "rollout_task_raises": Case(
        engine=LOOP, roles=("engine_async",), classes=("local_lock_deadlock",), code=("await groups.get()",),
        after="thinking-machines-lab/tinker-cookbook#945",
    ),
    "pipe_reply_lost": Case(
        roles=("engine",), classes=CYCLE, code=("self.worker.recv()", "pipe.recv()"), after="huggingface/trl#6628",
    ),
    "manager_queue": Case(
        trainer=FILES, roles=("orchestrator",), classes=("local_lock_deadlock", *CYCLE), code=("scores.get()",),
        after="huggingface/trl#5751",
    ),
    "slow_output": Case(engine=LOOP),
    "slow_shm": Case(engine=LOOP),
    "drained_update": Case(engine=LOOP),
    "loop_in_thread": Case(engine=LOOP),
    "slow_rollout_task": Case(engine=LOOP),
    "plain_loop": Case(engine=LOOP),
    "idle_loop": Case(engine=LOOP, trainer=""),
    "slow_pipe_worker": Case(),
    "slow_manager_queue": Case(trainer=FILES),
    "slow_key": Case(),
    "long_rollout": Case(),
    "busy_rollout": Case(),
    "slow_join": Case(),
    "slow_pack": Case(),
    "slow_start": Case(),
    "evaluation": Case(),
    "slow_worker": Case(),
    "plain": Case(),
    "eval_pause": Case(trainer=FILES),
    "orchestrator_naps": Case(trainer=FILES),
    "sandbox": Case(trainer=FILES),
    "slow_service": Case(trainer=FILES),
    "long_epoch": Case(trainer=FILES),
    "upload": Case(trainer=FILES),
    "slow_load": Case(trainer=FILES),
    "plain_files": Case(trainer=FILES),
}  # fmt: skip
