"""The parts of a judgement that can be switched off or listened to: each rule, and each generator of candidates."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsadiag.analysis import resolve
from nsadiag.analysis.explain import explanation
from nsadiag.analysis.explain.candidate import Rejection
from nsadiag.analysis.records import Declined

Part = Callable[..., Any]


def parts() -> dict[str, Part]:
    """Everything that can be switched off, by name: the check of each rule, and each generator of candidates."""
    generators = {part.__name__: part for part in explanation.GENERATORS}
    return {**{rule.name: rule.check for rule in resolve.RULES}, **generators}


def with_only(patch: pytest.MonkeyPatch, changed: Callable[[str, Part], Part | None]) -> None:
    """Put another part, or none, in the place of each one."""
    rules = [(rule, changed(rule.name, rule.check)) for rule in resolve.RULES]
    patch.setattr(resolve, "RULES", tuple(dataclasses.replace(r, check=check) for r, check in rules if check))
    generators = [changed(part.__name__, part) for part in explanation.GENERATORS]
    patch.setattr(explanation, "GENERATORS", tuple(part for part in generators if part))


def listened_to(name: str, part: Part, spoke: set[str]) -> Part:
    """The part, whose name is noted when it concludes."""

    @functools.wraps(part)
    def note(*arguments: Any) -> Any:
        answer = part(*arguments)
        if isinstance(answer, Iterator):
            return map(heard, answer)
        return answer if answer is None else heard(answer)

    def heard(answer: Any) -> Any:
        if not isinstance(answer, Declined | Rejection):
            spoke.add(name)
        return answer

    return note
