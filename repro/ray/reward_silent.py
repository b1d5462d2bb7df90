"""The reward model's server takes a request and never answers it: the client has no timeout.

Modelled on OpenRLHF/OpenRLHF issue 1123 (training hangs with a remote reward model).

Without a tool: the progress bar stops after some batches.

Promise:
  after_s: 40
  outcome: hung (suspected)
  class: external_wait
  guilty: [reward]
  code: self.server.recv(64)
"""

import socket
import threading

import ray


def serve(listener):
    connection, _ = listener.accept()
    for count in range(100):
        connection.recv(64)
        if count < 5:
            connection.sendall(b"0.5")


@ray.remote
class Reward:
    def __init__(self, port):
        self.server = socket.create_connection(("127.0.0.1", port))

    def score(self, samples):
        self.server.sendall(repr(samples).encode())
        return float(self.server.recv(64))


@ray.remote
class Rollout:
    def generate(self, reward, step):
        samples = [step] * 4
        return samples, ray.get(reward.score.remote(samples))


ray.init()
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener,), daemon=True).start()
reward = Reward.options(name="reward", num_cpus=0).remote(listener.getsockname()[1])
rollout = Rollout.options(name="rollout", num_cpus=0).remote()
for step in range(100):
    print("step", step, ray.get(rollout.generate.remote(reward, step))[1], flush=True)
