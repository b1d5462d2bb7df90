"""Rank 1 takes its batches from a thread that reads them from a server; the server falls silent after five.

The main thread waits on its own queue; only the thread that fills it shows that the cause is outside the process.

On plain torchrun: five steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: external_wait
  guilty_ranks: [1]
  code: "batches.get()"
"""

import queue
import socket
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

SERVER = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
client.sendall(b"".join(b"%8d" % n for n in range(int(sys.argv[1]))))
time.sleep(900)
"""


def served(records: int) -> socket.socket:
    """A connection to a server that sends so many records and falls silent."""
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(records)], stdout=subprocess.PIPE)
    return socket.create_connection(("127.0.0.1", int(server.stdout.readline())))


def prefetch(connection: socket.socket, batches: queue.Queue[float]) -> None:
    with connection.makefile("rb") as records:
        while record := records.read(8):
            batches.put(float(record))


def main() -> None:
    dist.init_process_group("gloo")
    connection = served(5 if dist.get_rank() == 1 else 20)
    batches: queue.Queue[float] = queue.Queue()
    threading.Thread(target=prefetch, args=(connection, batches), name="prefetch", daemon=True).start()
    for _step in range(20):
        batch = torch.full((8,), batches.get())
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
