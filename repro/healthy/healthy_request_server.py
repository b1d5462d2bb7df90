"""Rank 0 answers requests over HTTP, rank 1 waits in a broadcast for its part of each; for a while nobody asks anything.

As inference engines do: without a request one rank is in a server's loop, the others are in a collective, and which line
will issue that is on no stack.

On plain torchrun: forty requests, 12 s of silence, forty more; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import http.server
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn

CLIENT = """
import sys, time, urllib.request
url, idle_s = f"http://127.0.0.1:{sys.argv[1]}/", float(sys.argv[2])
for n in range(80):
    time.sleep(idle_s if n == 40 else 0.02)
    urllib.request.urlopen(url + str(n % 7 + 1)).read()
urllib.request.urlopen(url + "0").read()
"""


@torch.no_grad()
def generate(model: nn.Module, tokens: int) -> float:
    x = torch.ones(1, 64)
    for _ in range(tokens):
        dist.all_reduce(x := model(x))
        x = x.tanh()
    return x.sum().item()


def follow(model: nn.Module) -> None:
    tokens = torch.ones(1, dtype=torch.int64)
    while tokens.item():
        dist.broadcast(tokens, 0)
        generate(model, int(tokens))


def serve(model: nn.Module) -> None:
    class Requests(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens = int(self.path[1:])
            dist.broadcast(torch.tensor([tokens]), 0)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"%f" % generate(model, tokens))
            self.server.last = tokens == 0

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Requests)
    server.last = False
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(server.server_address[1]), "12"])
    while not server.last:
        server.handle_request()
    client.wait()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64, bias=False))
    serve(model) if dist.get_rank() == 0 else follow(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
