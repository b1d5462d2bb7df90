"""Rank 0 indexes the dataset, and the others poll for the index; the indexing fails, and rank 0 logs that and goes on.

On plain torchrun: "could not index" in rank 0's output, then silence: rank 1 polls, and rank 0 waits in a barrier.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: rank_exception
  guilty_ranks: [0]
  code: 'lengths = [len(row.split(":")[1]) for row in rows]'
"""

import json
import os
import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def index(rows: list[str], folder: Path) -> None:
    lengths = [len(row.split(":")[1]) for row in rows]
    (folder / "index.json").write_text(json.dumps(lengths))


def wait_for_index(folder: Path) -> list[int]:
    while not (folder / "index.json").exists():
        time.sleep(0.2)
    return list(json.loads((folder / "index.json").read_text()))


def main() -> None:
    dist.init_process_group("gloo")
    folder = Path(tempfile.gettempdir()) / f"shards-{os.environ['TORCHELASTIC_RUN_ID']}"
    folder.mkdir(exist_ok=True)
    dist.barrier()
    if dist.get_rank() == 0:
        try:
            index(["text: one", "text: two", "three"], folder)
        except IndexError as error:
            print(f"could not index: {error}", flush=True)
    else:
        print(len(wait_for_index(folder)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
