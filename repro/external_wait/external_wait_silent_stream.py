"""Rank 1 reads its prompts from a server through asyncio; the server accepts the connection and falls silent after five.

On plain torchrun: five steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: external_wait
  guilty_ranks: [1]
  code: "prompt = await reader.readline()"
"""

import asyncio

import torch
import torch.distributed as dist


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for number in range(5):
        writer.write(b"%d\n" % number)
    await writer.drain()
    await reader.read()


async def train() -> None:
    """The server runs in the same loop here, and in a process of its own elsewhere."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, _writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for _step in range(20):
        prompt = await reader.readline()
        dist.all_reduce(torch.full((8,), float(prompt)))


async def train_alone() -> None:
    for step in range(20):
        dist.all_reduce(torch.full((8,), float(step)))


def main() -> None:
    dist.init_process_group("gloo")
    asyncio.run(train() if dist.get_rank() == 1 else train_alone())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
