"""Runs training cells one after the other in one process group: one start of two ranks for many tests.

usage, by each rank: run_cells.py CELLS.json RESULT.json
CELLS is {name: [override, ...]}; RESULT, written by rank 0, is {name: losses}.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from nsa.options import load_train_config
from nsa.train import train


def main() -> None:
    cells, result = (Path(argument) for argument in sys.argv[1:])
    dist.init_process_group("gloo")
    losses = {}
    for name, overrides in json.loads(cells.read_text()).items():
        losses[name] = train(load_train_config("tiny", overrides))
    if dist.get_rank() == 0:
        result.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
