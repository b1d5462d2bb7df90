"""A healthy training with a long quiet phase: `train.py SHAPE SECONDS SEED`, under torchrun or alone."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import computing  # noqa: F401
import meeting  # noqa: F401
import outside  # noqa: F401
import processes  # noqa: F401
import storage  # noqa: F401
import threads  # noqa: F401
import trees  # noqa: F401
from job import SHAPES, Job

jobs: list[Job] = []


def main(name: str, seconds: str, seed: str) -> None:
    together = random.Random(seed)
    job = Job(seconds=float(seconds), together=together, scratch=Path(os.environ["QUIET_SCRATCH"]))
    # gloo's destructor joins threads that may want the interpreter lock: not before the process ends.
    jobs.append(job)
    job.train(together.choice((0, 1, 3, 20, 200)))
    for _ in range(together.choice((1, 1, 1, 2))):
        SHAPES[name].run(job)
        job.meet()
        job.train(together.choice((1, 5, 30)))
        job.seconds *= together.uniform(0.4, 1.4)
    job.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
