"""Training is over on all three ranks; rank 2's exit handler waits for its data server, which ignores the request.

Modelled on rwth-i6/returnn #1497: an exit handler sends its child SIGINT and waits for it; the child is busy with
something else and never leaves.

On plain torchrun: "done" on all ranks, and a job that never ends.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: hung (suspected)
  class: teardown_hang
  guilty_ranks: [2]
  code: "self.process.wait()"
"""

import atexit
import os
import signal
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class DataServer:
    """Feeds batches to this rank from a process of its own."""

    def __init__(self) -> None:
        serve = "while :; do sleep 1000; done"
        if os.environ["RANK"] == "2":  # its cache is being written, which must not be cut short
            serve = f"trap '' INT; {serve}"
        self.process = subprocess.Popen(["sh", "-c", serve], start_new_session=True)
        atexit.register(self.close)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            self.process.wait()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    server = DataServer()
    model = DDP(nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for step in range(15):
        batch = torch.randn(16, 24, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()
    print(f"rank {rank} done, server {server.process.pid}", flush=True)


if __name__ == "__main__":
    main()
