"""Rank 1 asks the metadata service for its next shard, without a timeout; the service took the call and is silent.

Modelled on macrocosm-os/pretraining #226 and psf/requests #3353: a request without a timeout waits forever for
a server that accepts connections and answers none. Here the server answers ten requests, then is suspended.

On plain torchrun: ten steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: external_wait
  guilty_ranks: [1]
  action: retry
  code: "with urllib.request.urlopen(self.url) as answer:"
"""

import os
import subprocess
import sys
import urllib.request

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SERVICE = """
import http.server, os, signal, sys
class Shards(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        sys.argv.append("one more")
        if len(sys.argv) > 11:
            os.kill(os.getpid(), signal.SIGSTOP)
        self.send_response(200); self.end_headers(); self.wfile.write(b"%d" % len(sys.argv))
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Shards)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Shards:
    """Numbers of shards, as the metadata service hands them out."""

    def __init__(self) -> None:
        service = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(service.stdout.readline())}/next"

    def next(self) -> int:
        with urllib.request.urlopen(self.url) as answer:
            return int(answer.read())


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shards = Shards() if rank == 1 else None
    for step in range(20):
        shard = shards.next() if shards else step
        batch = torch.full((8, 16), shard / 20, device=device) + torch.randn(8, 16, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
