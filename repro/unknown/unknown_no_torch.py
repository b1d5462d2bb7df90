"""The job waits for data that never come, before any Python or torch runs: there is nothing to read.

Modelled on cmb-chula/pylon #1 (training "stuck" before it began, waiting for another process' file). The
launcher counts the bytes of a stream of shards with `wc` and hands itself over to it; the stream's
writing end stays open, so it never ends. No interpreter, no black box, no stack in user code: an honest
tool says that it does not know.

On plain python: nothing at all, forever, with no CPU used.

Promise:
  launch: python
  options: [--timeout, "20"]
  outcome: unknown
  class: unknown
  guilty_ranks: []
  action: stop
"""

import os
import sys

HEADER = b"SHARDS 0001\n"


def shard_stream() -> int:
    """The reading end of the stream that the stager writes shards into."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # the stager outlives this script
    os.write(writing, HEADER)
    return reading


def main() -> None:
    os.dup2(shard_stream(), sys.stdin.fileno())
    os.execvp("wc", ["wc", "-c"])


if __name__ == "__main__":
    main()
