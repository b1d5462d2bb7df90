"""The driver takes the first of two answers: one engine waits for a lock that nobody releases, the other one for the first.

No public report: ray.wait returns once any of the calls is over, and neither ever is.

Without a tool: silence in the third round, all processes idle.

Promise:
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty: [engine-0]
  code: self.cache.acquire()
"""

import threading

import ray


@ray.remote
class Engine:
    def __init__(self, other=None):
        self.other, self.cache = other, threading.Lock()

    def answer(self, step):
        if self.other is not None:
            return ray.get(self.other.answer.remote(step))
        self.cache.acquire()
        if step < 2:
            self.cache.release()  # not where the cache is full
        return step


ray.init()
first = Engine.options(name="engine-0", num_cpus=0).remote()
second = Engine.options(name="engine-1", num_cpus=0).remote(first)
for step in range(100):
    done, left = ray.wait([engine.answer.remote(step) for engine in (first, second)], num_returns=1)
    print("round", step, ray.get(done), flush=True)
    ray.get(left)
