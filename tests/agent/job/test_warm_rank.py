"""A rank on a warm launcher is what it would be under torchrun, as far as a script can tell."""

from __future__ import annotations

import contextlib
from pathlib import Path
from textwrap import dedent

from nsadiag.agent.watching.state import WatchOptions
from nsadiag.engines.local import WarmLauncher, run_warm
from nsadiag.evidence.layout import RunDir

LOADS = """
    import multiprocessing
    from torch.utils.data import DataLoader, IterableDataset

    def rows():
        class Rows(IterableDataset):  # one that nobody can pickle
            def __iter__(self):
                return iter(range(4))
        return Rows()

    assert multiprocessing.get_start_method(allow_none=True) is None
    assert sum(int(batch.sum()) for batch in DataLoader(rows(), batch_size=2, num_workers=1)) == 6
"""


def test_processes_are_started_as_the_platform_does_and_not_as_the_fork_server_was(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(dedent(LOADS))
    run = RunDir(path=tmp_path / "run")
    launcher = WarmLauncher(tmp_path / "launcher.log", preload=("torch",), env={})
    with contextlib.closing(launcher):
        watch = run_warm(
            launcher,
            [str(script)],
            run,
            WatchOptions(timeout_s=300),
            world_size=1,
            probes="light",
            cwd=tmp_path,
        )
    assert watch.job.poll() == 0, run.rank(0).stderr.read_text()
