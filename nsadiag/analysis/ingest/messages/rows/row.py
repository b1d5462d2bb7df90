"""A row of the table of messages, and the fact that it makes of a line."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nsadiag.analysis.ingest.messages.lines import LogLine
from nsadiag.evidence.messages import Fact

MOST_NUMBERS = 65_536
MOST_TEXT = 4000  # characters of a message


@dataclass(frozen=True, kw_only=True)
class MessageRow:
    """One message of a library, launcher, scheduler or kernel.

    Named groups of the pattern are fields of the fact: a number where the field is one, and seconds where the name
    ends in `_ms` or `_us`.
    """

    makes: type[Fact]
    mark: str  # is in each line that the pattern finds, so that it need not be tried on others
    pattern: str
    example: str  # lines of a log
    source: str  # the file that prints it, or the documentation that names it
    versions: str = ""  # those known to print it so, where not all do
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields that the message as such decides
    whole: bool = False  # searched in the whole line, with its prefix
    repeats: bool = False  # a line may have it several times

    @functools.cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @functools.cached_property
    def types(self) -> dict[str, str]:
        return {each.name: str(each.type) for each in dataclasses.fields(self.makes)}

    def read(self, line: LogLine) -> Iterator[Fact]:
        """The facts that the line states; none where it is another message."""
        text = line.text if self.whole else line.said
        if self.mark in text:
            every = self.regex.finditer(text)
            yield from (
                self._fact(line, each) for each in (every if self.repeats else itertools.islice(every, 1))
            )

    def _fact(self, line: LogLine, found: re.Match[str]) -> Fact:
        values = dict(_value(self.types, n, v) for n, v in found.groupdict().items() if v is not None)
        own = line.speaker
        speaker = {"rank": own.rank, "pid": own.pid} if self.makes.is_of_its_speaker else {}
        if self.types.get("device") == "int | None":
            speaker["device"] = line.prefix.device
        said = {"line": line.number, "text": line.said.strip()[:MOST_TEXT], "time": line.prefix.time}
        return self.makes(**{"host": own.host, **said, **speaker, **self.fixed, **values})


def _value(types: Mapping[str, str], name: str, text: str) -> tuple[str, Any]:
    for unit, divisor in (("_ms", 1e3), ("_us", 1e6)):
        if name.endswith(unit):
            return name.removesuffix(unit), float(text) / divisor
    kind = types[name]
    if kind.startswith("int"):
        return name, int(text)
    if kind.startswith("float"):
        return name, float(text)
    if kind.startswith("tuple[int"):
        return name, _numbers(text)
    return name, text


def _numbers(text: str) -> tuple[int, ...]:
    """Those of a list, with spans as Slurm writes them: 8-12,14."""
    found: list[int] = []
    for begin, end in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text):
        last = min(int(end or begin), int(begin) + MOST_NUMBERS)
        found += range(int(begin), last + 1)
    return tuple(found[:MOST_NUMBERS])
