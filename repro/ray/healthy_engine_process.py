"""The engine of a rollout worker is a process of its own, which compiles for minutes: the worker waits on a pipe, all others for it.

Modelled on vllm-project/vllm issue 27313, where the engine's core says every minute that processes are hanging "or doing some
time-consuming work (e.g. compilation)".

Healthy twin of reward_silent.py.

Promise:
  after_s: 45
  outcome: healthy
"""

import multiprocessing

import ray


def engine(requests):
    while True:
        tokens = requests.recv()
        state = 1
        for _ in range(tokens):
            state = (state * 1103515245 + 12345) % 2**31
        requests.send([state])


@ray.remote
class Rollout:
    def __init__(self):
        self.engine, theirs = multiprocessing.Pipe()
        core = multiprocessing.get_context("fork").Process(target=engine, args=(theirs,), daemon=True)
        core.start()

    def generate(self, tokens):
        self.engine.send(tokens)
        return self.engine.recv()


@ray.remote
class Trainer:
    def fit(self, rollout):
        for tokens in (10, 100, 1000, 10**10):
            print("trained on", ray.get(rollout.generate.remote(tokens)), flush=True)


ray.init()
rollout = Rollout.options(name="rollout", num_cpus=0).remote()
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
ray.get(trainer.fit.remote(rollout))
