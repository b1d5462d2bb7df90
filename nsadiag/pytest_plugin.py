"""pytest's marks `distributed` and `ranks`: the test runs on several ranks under nsadiag.

@pytest.mark.distributed(nproc=2, timeout=60)  # as `nsadiag run`: a hang fails with the verdict
def test_gradients_are_averaged(process_group): ...

@pytest.mark.ranks(2)  # as `nsadiag check`: calls that do not match fail before they are made
def test_gradients_are_averaged(process_group): ...
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nsadiag
from nsadiag.deadlines import programs
from nsadiag.errors import NsadiagError

if TYPE_CHECKING:
    from nsadiag import Checked

MARK, RANKS = "distributed", "ranks"
IN_A_RANK = "NSADIAG_TEST_RANK"
REPORTS = (
    "NSADIAG_TEST_REPORTS"  # the directory with a folder for each rank, where it says what came of its test
)
REPORT = "test.json"
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
    config.addinivalue_line(
        "markers",
        f"{RANKS}(n={NPROC}, timeout={TIMEOUT_S:.0f}): rehearse the test on n ranks of CPU processes: calls that do not match fail it",
    )


@pytest.fixture
def process_group() -> Iterator[Any]:
    """The default process group of the test's ranks, until the test is over: NCCL and gloo where each rank has a GPU, else gloo."""
    if "RANK" not in os.environ:
        pytest.fail(f"process_group is for tests that are marked {MARK} or {RANKS}", pytrace=False)
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    has_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if has_gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpus else "gloo")
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.hookimpl(trylast=True)  # of tests that were deselected nothing is refused
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a mark are launched; their fixtures are set up on the ranks alone."""
    if IN_A_RANK in os.environ:
        return
    for item in items:
        if mark := item.get_closest_marker(RANKS):
            _refuse_debugger(item)
            vars(item).update(setup=lambda: None, runtest=_rehearsing(item, *_arguments(mark, "n")))
        elif mark := item.get_closest_marker(MARK):
            vars(item).update(setup=lambda: None, runtest=_launching(item, *_arguments(mark, "nproc")))


def _refuse_debugger(item: pytest.Item) -> None:
    """Raises pytest.UsageError where a debugger was asked for: the ranks have no terminal."""
    if item.config.getoption("usepdb") or item.config.getoption("trace"):
        raise pytest.UsageError(
            f"--pdb and --trace cannot stop the ranks of {item.nodeid}: leave them out, or deselect it (-m 'not {RANKS}')"
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """On a rank: pytest catches what a test raises, so nsadiag would not hear of it."""
    try:
        return (yield)
    except Exception as error:
        if IN_A_RANK in os.environ:
            _record(error)
        raise


def _arguments(mark: pytest.Mark, count: str) -> tuple[int, float]:
    """The number of ranks, which the mark calls `count`, and seconds. Raises pytest.UsageError for what it does not know."""
    known = {count: NPROC, "timeout": TIMEOUT_S, **mark.kwargs}
    known |= dict(zip((count, "timeout"), mark.args, strict=False))
    wrong = set(known) - {count, "timeout"}
    ranks, timeout_s = known[count], known["timeout"]
    if wrong or len(mark.args) > 2 or not isinstance(ranks, int) or ranks < 1 or not timeout_s > 0:
        raise pytest.UsageError(f"@pytest.mark.{mark.name} takes {count} (ranks) and timeout (seconds)")
    return ranks, float(timeout_s)


def _launching(item: pytest.Item, nproc: int, timeout_s: float) -> Callable[[], None]:
    def runtest() -> None:
        directory = _directory(item)
        done = _launched(item, directory, nproc, timeout_s)
        print(done.stderr)  # what the ranks wrote, for pytest to show where the test fails
        document = _document(done.stdout)
        verdict = document.get("verdict") or {}
        if done.returncode and verdict.get("outcome") not in PASSES:
            said = _words(verdict, directory) if verdict else done.stderr[-2000:]
            # A fixture that fails, or is not there, runs no code that could be judged.
            unset = {n: text for n, (what, text) in _reports(directory).items() if what == "setup failed"}
            pytest.fail("\n".join([*_on_ranks(unset, nproc), said]), pytrace=False)

    return runtest


def _rehearsing(item: pytest.Item, ranks: int, timeout_s: float) -> Callable[[], None]:
    def runtest() -> None:
        # What the test is expected to do is for the process to say that started the ranks.
        words = ("--runxfail", *_inner(item))
        directory = _directory(item)
        try:
            found = nsadiag.check(
                run_on_rank, ranks, (str(item.config.invocation_params.dir), words), seconds=timeout_s,
                out=directory, env={IN_A_RANK: "1", REPORTS: str(directory / "ranks")},
            )  # fmt: skip
        except NsadiagError as error:
            pytest.fail(f"{error.message}\nhint: {error.hint}", pytrace=False)
        reports = _reports(directory)
        print(found.output)
        skipped = [text for outcome, text in reports.values() if outcome == "skipped"]
        if len(skipped) == ranks:
            pytest.skip(skipped[0])
        failed = {rank: text for rank, (outcome, text) in reports.items() if outcome.endswith("failed")}
        if failed or found.answer != "agreed" or (found.verdict and found.verdict.outcome == "wrong"):
            pytest.fail("\n".join(_rehearsed(found, failed)), pytrace=False)

    return runtest


def _rehearsed(found: Checked, failed: dict[int, str]) -> Iterator[str]:
    """The reasons for which a rehearsed test failed: tracebacks of the first ranks, else the calls; then the verdict."""
    yield from _on_ranks(failed, found.rehearsal.world_size)
    if found.answer != "agreed":
        yield str(found)
    if found.verdict and found.verdict.outcome not in (*PASSES, "incomplete"):
        yield _words(found.verdict.to_json(), found.directory)


def _on_ranks(failed: Mapping[int, str], world_size: int) -> Iterator[str]:
    for rank, text in [*failed.items()][:2]:
        yield f"on rank {rank} of {world_size}:\n{text}"


def _reports(directory: Path) -> dict[int, list[str]]:
    """By rank, the outcome of its test where that is not "passed", and the text that goes with it."""
    files = sorted(directory.glob(f"ranks/*/{REPORT}"))
    return {int(file.parent.name): json.loads(file.read_text()) for file in files}


def run_on_rank(folder: str, words: tuple[str, ...]) -> None:
    """The test on one rank, in a pytest of its own."""
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    sys.exit(pytest.main([*words]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """On a rank: whatever is not passed is written down for who started it."""
    folder = os.environ.get(REPORTS)
    if folder and not report.passed:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        outcome = "setup failed" if report.failed and report.when == "setup" else report.outcome
        rank = f"{int(os.environ['RANK']):05d}"  # what is written elsewhere may be gone when the rehearsal is over
        with contextlib.suppress(OSError):
            Path(folder, rank, REPORT).write_text(json.dumps([outcome, reason]))


def _inner(item: pytest.Item) -> tuple[str, ...]:
    """The words for a pytest that runs this test alone."""
    config = item.config
    # Options of the configuration are for the whole suite: its workers, coverage, reports.
    plain = ("-p", PLUGIN, "-q", "--no-header", "-p", "no:cacheprovider", "-o", "addopts=")
    # The ranks' recorder has imported nsadiag before pytest could rewrite its asserts; it has none to show.
    quiet = ("-W", "ignore:Module already imported so cannot be rewritten")
    where = ("--rootdir", str(config.rootpath), "--import-mode", str(config.getoption("importmode")))
    return (*plain, *quiet, *where, f"{item.path}::{item.nodeid.partition('::')[2]}")


def _launched(item: pytest.Item, directory: Path, nproc: int, timeout_s: float) -> programs.Finished:
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    judge = [sys.executable, "-m", "nsadiag", "run", "--json", "--force", "--out", str(directory)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    try:
        return programs.run(
            [*judge, "--timeout", str(timeout_s), "--", *ranks, "-m", "pytest", *_inner(item)],
            cwd=item.config.invocation_params.dir,
            env={**environment, IN_A_RANK: "1", REPORTS: str(directory / "ranks")},
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
