"""Rank 0 counts words for a vocabulary that the other processes of torch.multiprocessing.spawn read before it is written.

Data that one process prepares, read by the rest without waiting: with the group not yet made, no barrier is possible.

On plain python: ProcessRaisedException with the traceback of process 1.

Promise:
  launch: python
  world_size: 2
  outcome: crashed
  class: rank_exception
  guilty_ranks: [1]
  code: "words = path.read_text().split()"
"""

import random
import tempfile
from collections import Counter
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing

SENTENCES = 20_000_000


def write_vocabulary(path: Path) -> None:
    draw, counts = random.Random(0), Counter()
    for _ in range(SENTENCES):
        counts.update(f"w{draw.randrange(50_000)}" for _ in range(10))
    path.write_text(" ".join(word for word, _ in counts.most_common(1000)))


def train(rank: int, folder: str) -> None:
    path = Path(folder) / "vocabulary.txt"
    if rank == 0:
        write_vocabulary(path)
    words = path.read_text().split()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29733", rank=rank, world_size=2)
    print(f"rank {rank}: {len(words)} words", flush=True)
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(folder,), nprocs=2)


if __name__ == "__main__":
    main()
