"""The answer to one question: could this piece of evidence be had here?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# not here: there is nothing to look at, such as GPUs on a machine without any.
Status = Literal["works", "limited", "missing", "not here"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: its subject, its result, and what to change."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    essential: bool = False  # without it a verdict has nothing to stand on

    @property
    def stands_in_the_way(self) -> bool:
        return self.essential and self.status == "missing"


Question = Callable[[], Check]


def answered(name: str, question: Question, *, essential: bool = False) -> Check:
    """The question's own answer; an error in it is one as well."""
    started = time.monotonic()
    try:
        return question()
    except Exception as error:
        took = f" after {time.monotonic() - started:.1f} s"
        return Check(
            name=name, status="missing", detail=f"{error or type(error).__name__}{took}", essential=essential
        )
