"""A thread sums up every rank's throughput over the default group, in which DDP reduces its gradients meanwhile.

Which of the two comes first is a matter of each rank's own clock. What DDP issues comes from C++.

On plain torchrun: gloo aborts a rank on a message of another size, or silence.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: collective_order_mismatch
  guilty_ranks: [0, 1]
  code: ["dist.all_reduce(total)", ".backward()"]
"""

import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Reporter(threading.Thread):
    def __init__(self, every_s: float) -> None:
        super().__init__(daemon=True)
        self.every_s, self.samples, self.done = every_s, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(self.every_s):
            total = torch.tensor([float(self.samples)])
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"{total.item():.0f} samples", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.LSTM(16, 32, batch_first=True))
    optimizer = torch.optim.RMSprop(model.parameters())
    reporter = Reporter(0.03 + 0.02 * rank)
    reporter.start()
    for _ in range(2000):
        states, _ = model(torch.randn(8, 10, 16))
        states.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        reporter.samples += 8
    reporter.done.set()
    reporter.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
