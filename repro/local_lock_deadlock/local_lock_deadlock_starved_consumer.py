"""Rollouts come from a task that fails on its fifth prompt: the trainer's task waits for its queue, and nobody checks the other.

On plain torchrun: five steps, then silence until gloo's timeout; "Task exception was never retrieved" only at the end.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: ["local_lock_deadlock", "rank_exception"]
  guilty_ranks: [1]
  code: "batch = await queue.get()"
"""

import asyncio

import torch
import torch.distributed as dist


async def rollouts(queue: asyncio.Queue[torch.Tensor], prompts: dict[int, float]) -> None:
    for number in range(20):
        await queue.put(torch.full((8,), prompts[number]))


async def train(prompts: dict[int, float]) -> None:
    queue: asyncio.Queue[torch.Tensor] = asyncio.Queue(1)
    producer = asyncio.create_task(rollouts(queue, prompts), name="rollouts")
    for _step in range(20):
        batch = await queue.get()
        dist.all_reduce(batch)
    await producer


def main() -> None:
    dist.init_process_group("gloo")
    known = 5 if dist.get_rank() == 1 else 20
    asyncio.run(train({number: float(number) for number in range(known)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
