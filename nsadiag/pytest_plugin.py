"""pytest's mark `distributed`: the test runs on several ranks under nsadiag, and a hang fails with the verdict.

@pytest.mark.distributed(nproc=2, timeout=60)
def test_gradients_are_averaged(): ...
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsadiag.deadlines import programs

MARK = "distributed"
IN_A_RANK = "NSADIAG_TEST_RANK"
PLUGIN = "nsadiag.pytest_plugin"
NPROC, TIMEOUT_S = 2, 60.0
GRACE_S = 120.0  # beyond the test's own limit: start-up of nsadiag, last snapshots and the verdict
STOP_S = 30.0  # for a run past its limit to stop its ranks
# A test that is slow, or has no torch process to judge, has not failed.
PASSES = ("healthy", "slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nsadiag")
    group.addoption(
        "--nsadiag-out",
        metavar="DIR",
        default="artifacts/pytest",
        help="directory for the runs of tests that are marked distributed (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(nproc={NPROC}, timeout={TIMEOUT_S:.0f}): run the test on nproc ranks under nsadiag; a hang fails with the verdict",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with the mark are launched; their fixtures are set up on the ranks alone."""
    if IN_A_RANK in os.environ:
        return
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None:
            nproc, timeout_s = _arguments(mark)
            vars(item).update(setup=lambda: None, runtest=_launching(item, nproc, timeout_s))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """On a rank: pytest catches what a test raises, so nsadiag would not hear of it."""
    try:
        return (yield)
    except Exception as error:
        if IN_A_RANK in os.environ:
            _record(error)
        raise


def _arguments(mark: pytest.Mark) -> tuple[int, float]:
    """Raises pytest.UsageError for what the mark does not know."""
    known = {"nproc": NPROC, "timeout": TIMEOUT_S, **mark.kwargs}
    known |= dict(zip(("nproc", "timeout"), mark.args, strict=False))
    wrong = set(known) - {"nproc", "timeout"}
    nproc, timeout_s = known["nproc"], known["timeout"]
    if wrong or len(mark.args) > 2 or not isinstance(nproc, int) or nproc < 1 or not timeout_s > 0:
        raise pytest.UsageError(f"@pytest.mark.{MARK} takes nproc (ranks) and timeout (seconds)")
    return nproc, float(timeout_s)


def _launching(item: pytest.Item, nproc: int, timeout_s: float) -> Any:
    def runtest() -> None:
        directory = _directory(item)
        done = _launched(item, directory, nproc, timeout_s)
        print(done.stderr)  # what the ranks wrote, for pytest to show where the test fails
        document = _document(done.stdout)
        verdict = document.get("verdict") or {}
        if done.returncode and verdict.get("outcome") not in PASSES:
            pytest.fail(_words(verdict, directory) if verdict else done.stderr[-2000:], pytrace=False)

    return runtest


def _launched(item: pytest.Item, directory: Path, nproc: int, timeout_s: float) -> programs.Finished:
    config = item.config
    test = f"{item.path}::{item.nodeid.partition('::')[2]}"
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    # Options of the configuration are for the whole suite: its workers, coverage, reports.
    inner = ["-m", "pytest", "-p", PLUGIN, "-q", "--no-header", "-p", "no:cacheprovider", "-o", "addopts="]
    # The ranks' recorder has imported nsadiag before pytest could rewrite its asserts; it has none to show.
    inner += ["-W", "ignore:Module already imported so cannot be rewritten"]
    inner += ["--rootdir", str(config.rootpath), "--import-mode", str(config.getoption("importmode")), test]
    judge = [sys.executable, "-m", "nsadiag", "run", "--json", "--force", "--out", str(directory)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    try:
        return programs.run(
            [*judge, "--timeout", str(timeout_s), "--", *ranks, *inner],
            cwd=config.invocation_params.dir,
            env={**environment, IN_A_RANK: "1"},
            seconds=timeout_s + GRACE_S,
            grace_s=STOP_S,
        )
    except TimeoutError:
        pytest.fail(f"no verdict {GRACE_S:.0f} s after the test's limit of {timeout_s:g} s", pytrace=False)


def _directory(item: pytest.Item) -> Path:
    name = re.sub(r"[^\w.=-]+", "-", item.nodeid)[-100:].strip("-")
    return item.config.invocation_params.dir / str(item.config.getoption("--nsadiag-out")) / name


def _document(stdout: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(stdout)
        return found if isinstance(found, dict) else {}
    return {}


def _words(verdict: dict[str, Any], directory: Path) -> str:
    """The verdict in a few lines."""
    where, ranks = verdict.get("where") or {}, verdict.get("guilty_ranks") or []
    guilty = f", rank {', '.join(map(str, ranks[:8]))} of {verdict.get('world_size')}" if ranks else ""
    lines = [f"{str(verdict['outcome']).upper()} {verdict['class']}{guilty}", str(verdict["summary"])]
    if where.get("file"):
        lines.append(f"at      {where['file']}:{where.get('line')} in {where.get('function')}")
        lines += [f"        > {str(where['code']).strip()}"] if where.get("code") else []
    lines += [f"fix     {verdict['fix']}"] if verdict.get("fix") else []
    return "\n".join([*lines, f"report  {directory / 'report.html'}"])


def _record(error: BaseException) -> None:
    from nsadiag.worker import session
    from nsadiag.worker.failures import crash

    rank = session.current()
    if rank is not None:
        crash.record(rank, error, error.__traceback__, thread="MainThread")
