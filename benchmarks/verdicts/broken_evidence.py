"""How many broken run directories and dumps are judged without a traceback, a hang, much memory or a touch elsewhere.

    python benchmarks/verdicts/broken_evidence.py --rounds 10000 [--seed 1] [--processes 2] [--json]

Each round breaks one thing in a recording (or in dumps), judges it, writes its reports and renders one format.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks/scale")]

from support.mutation.judging import judged, peak_mib, quick  # noqa: E402
from support.recordings.golden import recorded  # noqa: E402 - beside the tests

AT_ONCE = 100  # rounds of one process
OF_ALL = 10  # one share in so many is of all recordings, the others of small ones


def one_share(share: tuple[int, int]) -> tuple[list[tuple[str, str]], int, int, float]:
    """What went wrong, the rounds, the memory and the CPU."""
    seed, rounds = share
    names = sorted(recorded())[seed % 9 :: 9] if seed % OF_ALL == 0 else quick(40)[seed % 4 :: 4]
    began = time.process_time()
    all_ = [(each.came, each.what) for each in judged(names, rounds, seed)]
    return [each for each in all_ if each[0]], len(all_), peak_mib(), time.process_time() - began


def in_own_process(share: tuple[int, int]) -> tuple[list[tuple[str, str]], int, int, float]:
    """The same in a new process: its peak is that of these directories, and not of all before them."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(one_share, share).result()


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ask.add_argument("--rounds", type=int, default=10_000)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--processes", type=int, default=os.cpu_count())
    ask.add_argument("--json", action="store_true")
    told = ask.parse_args()
    counts = [min(AT_ONCE, told.rounds - first) for first in range(0, told.rounds, AT_ONCE)]
    shares = [(told.seed * 100_000 + number, count) for number, count in enumerate(counts)]
    wrong: collections.Counter[str] = collections.Counter()
    example: dict[str, str] = {}
    done, peak, cpu_s = 0, 0, 0.0
    with ThreadPoolExecutor(told.processes) as pool:
        for found, rounds, mib, seconds in pool.map(in_own_process, shares):
            done, peak, cpu_s = done + rounds, max(peak, mib), cpu_s + seconds
            for came, what in found:
                wrong[came] += 1
                example.setdefault(came, what)
            print(
                f"{done - wrong.total()} of {done} survived, {peak} MiB, {cpu_s:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    figures = {"rounds": done, "survived": done - wrong.total(), "peak_mib": peak, "cpu_s": round(cpu_s)}
    if told.json:
        print(json.dumps({"machine": {"cores": os.cpu_count()}, "figures": figures}))
        return
    for came, count in wrong.most_common():
        print(f"{count:5} x {came}\n        {example[came]}")
    print(
        f"{figures['survived']} of {done} broken directories judged; {peak} MiB at most, {cpu_s:.0f} s of CPU"
    )


if __name__ == "__main__":
    main()
