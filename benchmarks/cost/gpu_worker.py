"""A training job that trains when it is told to, with the probes of its process put in and taken out between turns.

`overhead_gpu.py` starts it, as it is and under `nsadiag run`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 24  # past the first reviews, at which a probe learns what steps of this length afford


@contextlib.contextmanager
def production(model: str, *options: str) -> Iterator[Callable[[], Any]]:
    """One step of nsa's trainer with one of its configurations."""
    from nsa import train
    from nsa.options import load_train_config
    from nsa.parallel import process_group

    config = load_train_config(model, [*options, "train.steps=1000000"])
    with process_group(config.parallel) as placement:
        run = train._Run(config, placement)
        yield run._step
        run.close()
        del run


class Switch:
    """Puts the probes of this process in and out; in a process that nobody watches it does nothing."""

    def __init__(self) -> None:
        from nsadiag.worker import probes, session

        self._rank, self._probes = session.current(), probes
        self._stack = contextlib.ExitStack()
        probes.remove_probes()

    def put_in(self, spec: str) -> None:
        """`spec`: light, or armed, those of a job that nobody has asked about."""
        self.take_out()
        if self._rank is not None:
            from nsadiag.evidence.probes import chosen

            os.environ[self._probes.PROBES_VARIABLE] = spec
            for name in chosen(spec):
                self._stack.enter_context(self._probes.PROBES[name]())

    def take_out(self) -> None:
        self._stack.close()

    def review(self, *, every_gradient: bool) -> None:
        """Has the probes look at what steps as long as these afford, as they do after 4, 16, 64 … steps."""
        from nsadiag.worker.probes import budget

        for review in budget.on_review:
            review(float("1e9") if every_gradient else budget.step_s())

    def events(self) -> int:
        """Written so far."""
        if self._rank is None:
            return 0
        from nsadiag.evidence.ring.reader import Pulse

        last = Pulse(self._rank.directory.blackbox).last()
        return int(last["sequence"][0]) if last is not None else 0


class Turns:
    """Takes turns of some steps."""

    def __init__(self, step: Callable[[], Any]) -> None:
        import torch

        self._step, self._cuda = step, torch.cuda if torch.cuda.is_available() else None
        self._switch = Switch()

    def take(self, probes: str, steps: int) -> dict[str, Any]:
        """`probes`: light, armed, out, or every: light with a hook on each parameter."""
        # Whoever meets the collection of garbage would do so by chance.
        gc.collect()
        # Also where they are to be out: a class that is changed loses what the interpreter has learnt of it.
        self._switch.put_in("light")
        if probes == "armed":
            self._switch.put_in("armed")
        self._step()
        self._switch.review(every_gradient=probes == "every")
        if probes == "out":
            self._switch.take_out()
        self._milliseconds()
        events, graphs = self._switch.events(), self._graphs()
        told = [self._milliseconds() for _ in range(steps)]
        assert self._graphs() == graphs, "a turn in which something is compiled measures that"
        events = (self._switch.events() - events) / steps
        return {"ms": told, "events": events, "clock": self._clock_mhz()}

    def _milliseconds(self) -> float:
        """Of one step, the device's part included."""
        started = time.perf_counter()
        self._step()
        if self._cuda is not None:
            self._cuda.synchronize()
        return (time.perf_counter() - started) * 1e3

    def _clock_mhz(self) -> int:
        """The GPU's, 0 if nobody can say."""
        with contextlib.suppress(ImportError, RuntimeError):
            return self._cuda.clock_rate() if self._cuda is not None else 0
        return 0

    @staticmethod
    def _graphs() -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"].get("unique_graphs", 0))


def serve(folder: Path, cores: list[int], model: str, *options: str) -> None:
    """Answers each request that comes in, a JSON line, by one. Ranks of a job get the same requests, and so agree on the steps.

    All threads of a rank stay on one core, autograd's too: there the time of steps that Python launches varies by 4 %, by 20 %
    where threads move about. So what watching threads do beside a step counts in full.
    """
    rank = int(os.environ.get("RANK", "0"))
    with production(model, *options) as step:
        for _ in range(WARM_UP_STEPS):
            step()
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[rank]})
        turns = Turns(step)
        gc.freeze()
        gc.disable()
        with (folder / f"in{rank}").open() as requests, (folder / f"out{rank}").open("w") as answers:
            for line in requests:
                answers.write(json.dumps(turns.take(**json.loads(line))) + "\n")
                answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), [int(core) for core in sys.argv[2].split(",")], *sys.argv[3:])
