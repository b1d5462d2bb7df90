"""torch's own tests that fail on purpose, with the exceptions that they expect let out: is each failure judged right?

    python benchmarks/others/torch_tests.py                       # those of torch's wheel that need no GPU: 16 jobs
    python benchmarks/others/torch_tests.py --only barrier --rows rows.jsonl

torch's wheel has `torch.testing._internal.distributed.distributed_test`. Its tests are run as they stand, each as a job of two
or three ranks on gloo under `nsadiag run`; `assertRaises` and `assertRaisesRegex` catch nothing here, so that the rank on which
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

JOB = """
import contextlib, os, sys
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test as theirs

@contextlib.contextmanager
def nothing_caught():
    yield

class Case(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    def assertRaises(self, expected, *call, **options):
        return call[0](*call[1:], **options) if call else nothing_caught()

    def assertRaisesRegex(self, expected, words, *call, **options):
        return self.assertRaises(expected, *call, **options)

dist.init_process_group("gloo")
case = Case(sys.argv[1])
case.rank, case.file_name = dist.get_rank(), sys.argv[2]
getattr(case, sys.argv[1])()
dist.destroy_process_group()
"""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is right to say of one test."""

    ranks: int = 2
    classes: frozenset[str]
    guilty: tuple[tuple[int, ...], ...] = ()  # any of these; nothing: whatever ranks are named


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
    "test_monitored_barrier_failure_order": Truth(ranks=8, classes=ABSENT, guilty=((2,),)),
    "test_monitored_barrier_wait_all_ranks": Truth(ranks=8, classes=ABSENT, guilty=((1, 2), (1,), (2,))),
}
TIMEOUT_S = 120.0


def one(name: str, truth: Truth, folder: Path) -> dict[str, Any]:
    """The verdict on one test."""
    (folder / "train.py").write_text(JOB)
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / "theirs" / part).mkdir(parents=True)
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "BACKEND": "gloo", "TEMP_DIR": str(folder / "theirs"),
        "INIT_METHOD": f"file://{folder / 'theirs' / 'init_dir' / 'store'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
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
    parser.add_argument("--rows", type=Path, help="a file to which each row is added")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:
        sys.exit("error: torch's tests import expecttest: pip install expecttest")
    rows = []
    for name in (name for name in TRUTH if options.only in name):
        with tempfile.TemporaryDirectory(prefix="torch-tests-") as folder:
            rows.append(one(name, TRUTH[name], Path(folder)))
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
