"""The dynamic slice: who last wrote, on the recorded path, a name that a line read."""

from __future__ import annotations

import bisect
from collections import defaultdict

from nsadiag.analysis.paths.walk import Executed, Frame, Walk
from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.statements import Statement, given_names, is_handler, statement_of


class Slices:
    """Reads and writes along one walk."""

    def __init__(self, code: SourceModel, walk: Walk) -> None:
        self.code, self.walk = code, walk
        self._statements: dict[tuple[str, int], Statement | None] = {}
        self._by_last: dict[str, list[Executed]] | None = None

    def statement(self, step: Executed) -> Statement | None:
        """The statement of the line."""
        if step.at not in self._statements:
            self._statements[step.at] = statement_of(self.code.file(step.frame.file), step.line)
        return self._statements[step.at]

    def is_handler(self, step: Executed) -> bool:
        """Whether the line is an `except`."""
        return is_handler(self.code.file(step.frame.file), step.line)

    def reads(self, step: Executed) -> tuple[Read, ...]:
        found = self.statement(step)
        return found.reads if found else ()

    def writes(self, step: Executed) -> frozenset[Read]:
        found = self.statement(step)
        return found.writes if found else frozenset()

    def writer(self, step: Executed, read: Read) -> Executed | None:
        """The last step before this one that wrote the name: in its frame, an attribute's anywhere, a global's at the top."""
        known = self._writers.get(read[-1], [])
        at = bisect.bisect_left(known, step.index, key=lambda each: each.index)
        for each in reversed(known[:at]):
            if len(read) > 1 or each.frame is step.frame or self._is_visible(each, step):
                return each
        # What an object is was decided where its name was bound.
        return self.writer(step, read[:-1]) if len(read) > 1 else None

    def _is_visible(self, writer: Executed, reader: Executed) -> bool:
        """Whether a plain name that was written there is the one that is read here: of the module, or of a function around."""
        ours, theirs = writer.frame.code, reader.frame.code
        return ours.file == theirs.file and (
            ours.text == "<module>" or theirs.text.startswith(f"{ours.text}.<locals>.")
        )

    @property
    def _writers(self) -> dict[str, list[Executed]]:
        if self._by_last is None:
            self._by_last = defaultdict(list)
            for step in self.walk.steps[1:]:
                for name in self.writes(step):
                    self._by_last[name[-1]].append(step)
        return self._by_last

    def argument(self, frame: Frame, name: str) -> tuple[Read, ...] | None:
        """The names in the argument that a parameter was given by the caller's line; None where it is no parameter."""
        caller = self.statement(frame.caller) if frame.caller else None
        if caller is None:
            return None
        return given_names(self.code.file(frame.file), frame.code.line, name, caller)
