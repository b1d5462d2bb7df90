"""torch's own tests that fail on purpose, with the exceptions that they expect let out: is each failure judged right?

    python benchmarks/verdicts/others/torch_tests.py                       # those of torch's wheel that need no GPU: 16 jobs
    python benchmarks/verdicts/others/torch_tests.py --checkout PYTORCH    # and those of its test/distributed/test_pg_wrapper.py: 5 more
    python benchmarks/verdicts/others/torch_tests.py --only barrier --rows rows.jsonl

torch's wheel has `torch.testing._internal.distributed.distributed_test`. Its tests are run as they stand, each as a job of two
to eight ranks on gloo under `nsadiag run`; `assertRaises` and `assertRaisesRegex` catch nothing here, so that the rank on which
the failure is expected ends with it, as a training script would. The other ranks end when their part of the test does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTHING_CAUGHT = """
import contextlib, os, sys
import torch.distributed as dist

@contextlib.contextmanager
def nothing_caught():
    yield

class NothingCaught:
    def assertRaises(self, expected, *call, **options):
        return call[0](*call[1:], **options) if call else nothing_caught()

    def assertRaisesRegex(self, expected, words, *call, **options):
        return self.assertRaises(expected, *call, **options)
"""
OF_THE_WHEEL = f"""{NOTHING_CAUGHT}
from torch.testing._internal.distributed import distributed_test as theirs

class Case(NothingCaught, theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    pass

dist.init_process_group("gloo")
case = Case(sys.argv[1])
case.rank, case.file_name = dist.get_rank(), sys.argv[2]
getattr(case, sys.argv[1])()
dist.destroy_process_group()
"""
OF_THE_WRAPPER = f"""{NOTHING_CAUGHT}
import test_pg_wrapper as theirs

class Case(NothingCaught, theirs.ProcessGroupGlooWrapperTest):
    rank, world_size, file_name = dist.get_node_local_rank(), int(os.environ["WORLD_SIZE"]), sys.argv[2]

getattr(Case(sys.argv[1]), sys.argv[1])()
"""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is right to say of one test."""

    ranks: int = 2
    classes: frozenset[str]
    guilty: tuple[tuple[int, ...], ...] = ()  # any of these; nothing: whatever ranks are named
    job: str = OF_THE_WHEEL


RAISES = frozenset({"rank_exception"})
# Who does not take part ends at once, or waits elsewhere until the others have given up.
ABSENT = frozenset({"missing_rank", "rank_exited_early"})
TRUTH = {
    "test_get_backend": Truth(ranks=3, classes=RAISES, guilty=((0,),)),
    "test_Backend_enum_class": Truth(classes=RAISES),
    "test_all_reduce_complex_unsupported_ops": Truth(classes=RAISES),
    "test_all_reduce_coalesced_max_complex_unsupported": Truth(classes=RAISES),
    "test_static_graph_api_cpu": Truth(classes=RAISES),
    "test_gather_object": Truth(classes=RAISES),
    "test_gather_object_subgroup": Truth(classes=RAISES),
    "test_scatter_object_list": Truth(classes=RAISES),
    "test_barrier_timeout_global": Truth(classes=ABSENT, guilty=((1,),)),
    "test_barrier_timeout_group": Truth(ranks=8, classes=ABSENT, guilty=((2,),)),
    "test_barrier_timeout_full_group": Truth(ranks=3, classes=ABSENT, guilty=((1, 2), (1,), (2,))),
    "test_monitored_barrier_gloo": Truth(classes=ABSENT, guilty=((1,),)),
    "test_monitored_barrier_gloo_subgroup": Truth(classes=ABSENT, guilty=((1,),)),
    # Its limit is 0 s: rank 0 gives up before anybody could come.
    "test_monitored_barrier_gloo_rank_0_timeout": Truth(classes=RAISES | ABSENT, guilty=((0,), (1,))),
    # All but these one or two stay away. torch names the first of them, or all.
    "test_monitored_barrier_failure_order": Truth(ranks=8, classes=ABSENT, guilty=((2, 3, 4, 5, 6, 7),)),
    "test_monitored_barrier_wait_all_ranks": Truth(ranks=8, classes=ABSENT, guilty=((1, 2, 3, 4, 5, 6, 7),)),
}
# Each lets rank 0 make another call than rank 1: its condition, or the two calls that met, are the cause.
OTHER_CALLS = frozenset({"rank_conditional_collective", "collective_order_mismatch"})
OTHER_SIZES = frozenset({"collective_args_mismatch"})
TRUTH_OF_THE_WRAPPER = {
    "test_collective_hang": Truth(classes=ABSENT | OTHER_CALLS, job=OF_THE_WRAPPER),
    "test_collectives_op_mismatch": Truth(classes=OTHER_CALLS, job=OF_THE_WRAPPER),
    "test_collectives_op_mismatch_debug_mode": Truth(classes=OTHER_CALLS, job=OF_THE_WRAPPER),
    "test_collective_shape_mismatch_debug_mode": Truth(classes=OTHER_SIZES, job=OF_THE_WRAPPER),
    "test_collective_shape_mismatch_debug_mode_off": Truth(classes=OTHER_SIZES, job=OF_THE_WRAPPER),
}
TIMEOUT_S = 120.0


def one(name: str, truth: Truth, folder: Path, checkout: Path | None) -> dict[str, Any]:
    """The verdict on one test."""
    (folder / "train.py").write_text(truth.job)
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / "theirs" / part).mkdir(parents=True)
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "BACKEND": "gloo", "TEMP_DIR": str(folder / "theirs"),
        "INIT_METHOD": f"file://{folder / 'theirs' / 'init_dir' / 'store'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(checkout / "test" / "distributed") if checkout else "",
    }  # fmt: skip
    launcher = ["torchrun", "--standalone", "--nproc-per-node", str(truth.ranks)]
    ours = ["nsadiag", "run", "--quiet", "--timeout", str(TIMEOUT_S), "--out", "run", "--"]
    command = [*ours, *launcher, "train.py", name, str(folder / "store")]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    verdict = json.loads((folder / "run" / "verdict.json").read_text())
    guilty = tuple(verdict["guilty_ranks"])
    return {
        "test": name,
        "class": verdict["class"],
        "guilty_ranks": list(guilty),
        "certainty": verdict["certainty"],
        "summary": verdict["summary"],
        "verdict_s": verdict["times"]["verdict_s"],
        "load": round(os.getloadavg()[0], 1),
        "right": verdict["class"] in truth.classes and (not truth.guilty or guilty in truth.guilty),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="tests in whose name this stands")
    parser.add_argument(
        "--checkout", type=Path, help="a clone of pytorch/pytorch, for the tests that are not in the wheel"
    )
    parser.add_argument("--rows", type=Path, help="a file to which each row is added")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:
        sys.exit("error: torch's tests import expecttest: pip install expecttest")
    rows = []
    truths = TRUTH | (TRUTH_OF_THE_WRAPPER if options.checkout else {})
    for name, truth in truths.items():
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="torch-tests-") as folder:
            rows.append(one(name, truth, Path(folder), options.checkout))
        row = rows[-1]
        mark = "right" if row["right"] else "WRONG"
        print(f"{mark} {name}: {row['class']} {row['guilty_ranks']}: {row['summary']}", file=sys.stderr)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    figures = {"jobs": len(rows), "right": sum(row["right"] for row in rows)}
    print(json.dumps({"rows": rows, "figures": figures}, indent=1) if options.json else figures)


if __name__ == "__main__":
    main()
