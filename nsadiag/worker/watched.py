"""The run directory that `nsadiag.watch` yields: a path that also knows what the run came to."""

from __future__ import annotations

import time
from pathlib import PosixPath
from typing import TYPE_CHECKING

from nsadiag.evidence.layout import RunDir, read_json

if TYPE_CHECKING:
    from nsadiag.evidence.records import Verdict

WAIT_S = 60.0  # after the block, for the process beside the ranks to judge
POLL_S = 0.1


class Watched(PosixPath):
    """The run directory; after the block `verdict` waits for the judgement, before it nothing is waited for."""

    waits = False  # whether there is a judgement to wait for

    @property
    def verdict(self) -> Verdict | None:
        """The verdict: what is known so far within the block, all of it after. None where there is none, or none in a minute."""
        run = RunDir(path=PosixPath(self))
        deadline = time.monotonic() + WAIT_S
        # The judge says that the run has ended after it has written the verdict.
        while self.waits and not read_json(run.run, {}).get("ended_at") and time.monotonic() < deadline:
            time.sleep(POLL_S)
        document = read_json(run.verdict, {})
        if not document:
            return None
        from nsadiag.evidence.records import Verdict  # only who asks pays for it

        return Verdict.from_json(document)
