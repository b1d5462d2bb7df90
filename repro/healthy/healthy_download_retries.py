"""Rank 0 fetches the tokenizer from a slow mirror that refuses it twice; rank 1 waits in a monitored barrier.

Every hub client does this: a connection that fails, a pause, another attempt, then a body that trickles in.
CPU time is next to nothing, and only the bytes that reach the file say that it goes on.

On plain torchrun: 25 s of silence, then twenty steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

BODY_S = float(os.environ.get("BODY_S", "15"))
MIRROR = """
import http.server, sys, time
class Mirror(http.server.BaseHTTPRequestHandler):
    refusals = 2
    def do_GET(self):
        Mirror.refusals -= 1
        self.send_response(503 if Mirror.refusals >= 0 else 200)
        self.end_headers()
        for _ in range(int(float(sys.argv[1]) * 2) if Mirror.refusals < 0 else 0):
            self.wfile.write(bytes(8192))
            time.sleep(0.5)
server = http.server.HTTPServer(("127.0.0.1", 0), Mirror)
print(server.server_port, flush=True)
server.serve_forever()
"""


def fetch(url: str) -> int:
    """Bytes written to disk, at the third attempt."""
    for pause in (3.0, 6.0, 12.0):
        try:
            with urllib.request.urlopen(url, timeout=60) as body, tempfile.TemporaryFile() as file:
                while piece := body.read1(4096):
                    file.write(piece)
                    file.flush()
                return file.tell()
        except urllib.error.HTTPError:
            time.sleep(pause)
    raise SystemExit("the mirror is down")


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        command = [sys.executable, "-c", MIRROR, str(BODY_S)]
        mirror = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        print(f"fetched {fetch(f'http://127.0.0.1:{mirror.stdout.readline().strip()}/')} bytes", flush=True)
        mirror.kill()
    dist.monitored_barrier(timeout=timedelta(minutes=10))
    model = DDP(torch.nn.Linear(64, 64))
    for step in range(20):
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
