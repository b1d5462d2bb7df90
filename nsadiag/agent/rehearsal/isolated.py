"""A rehearsal touches nothing outside (`evidence/rehearsal/namespaces.py`).

`python -m nsadiag.agent.rehearsal.isolated REQUEST COMMAND...` enters namespaces of its own and becomes the command.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from nsadiag.agent.rehearsal import ranks
from nsadiag.evidence.rehearsal import NETWORK
from nsadiag.evidence.rehearsal.namespaces import Apart, isolate


@dataclass(frozen=True, kw_only=True)
class Request:
    """`report` is the file that says what was kept apart."""

    report: str
    apart: Apart

    def line(self, command: list[str]) -> list[str]:
        """The command line that runs the command so."""
        name = __spec__.name if __spec__ else __name__
        return [sys.executable, "-m", name, json.dumps(asdict(self)), *command]


def main(words: list[str]) -> NoReturn:
    given, *command = words
    about = json.loads(given)
    apart = Apart(**about["apart"])
    isolation = isolate(apart)
    Path(about["report"]).write_text(json.dumps(asdict(isolation)))
    if apart.network and not isolation.network_apart:
        os.environ[NETWORK] = "refused"  # by the ranks, as far as Python's sockets go
    if command[:3] == [sys.executable, "-m", ranks.NAME]:
        is_apart = (
            isolation.files_apart and not apart.lasting and (isolation.network_apart or not apart.network)
        )
        sys.exit(ranks.main(command[3:], apart if is_apart else None))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
