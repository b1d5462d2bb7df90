"""The actors of rank 1 wait for room in a queue whose only reader waits for a larger batch than the queue can hold.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty_ranks: [1]
  code: ["asyncio.run(", "await self.queue.put(", "await self.enough.wait()"]
"""

import asyncio

import torch
import torch.distributed as dist


class Rollouts:
    """Episodes from actors that share an event loop; an update takes as many as `batch`."""

    def __init__(self, batch: int) -> None:
        self.queue: asyncio.Queue[torch.Tensor] = asyncio.Queue(maxsize=8)
        self.enough, self.batch = asyncio.Event(), batch

    async def act(self, episodes: int) -> None:
        for _ in range(episodes):
            await asyncio.sleep(0.002)
            await self.queue.put(torch.randn(16))
            if self.queue.qsize() >= self.batch:
                self.enough.set()

    async def collect(self) -> torch.Tensor:
        actors = [asyncio.create_task(self.act(self.batch)) for _ in range(4)]
        await self.enough.wait()
        for actor in actors:
            actor.cancel()
        return torch.stack([self.queue.get_nowait() for _ in range(self.queue.qsize())])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    policy = torch.nn.Linear(16, 4)
    for update in range(30):
        # Rank 1 asks for larger batches from the tenth update on, and nobody made its queue larger.
        batch = 12 if rank == 1 and update >= 10 else 6
        episodes = asyncio.run(Rollouts(batch).collect())
        policy(episodes).square().mean().backward()
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad)
        print(f"rank {rank} update {update}", flush=True)


if __name__ == "__main__":
    main()
