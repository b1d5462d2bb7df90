"""Prefixes of log lines: stamps of launchers, loggers, containers and schedulers, composed in any order.

A line is parsed from the left, one part after another, until what is left begins with none. The first part that names
a rank, a process or a host is the one that counts: it was put on last, by whoever collected the line.
"""

from __future__ import annotations

import functools
import re

from nsadiag.analysis.ingest.messages.lines import NO_PREFIX, NOBODY, Prefix, Speaker

MOST_PARTS = 12
DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d|\d\d[-/]\d\d[-/]\d{4})"
CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
STAMP = rf"{DATE}[T _]?{CLOCK}(?:Z|[+-]\d\d:?\d\d)?"
LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|NOTICE|TRACE|SUCCESS|debug|info|warning|warn|error|critical|fatal)"
FILE = r"[\w./<>-]+:\d+(?::[\w<>]+)?"
# Each begins where the one before it ended. Of several that fit, the first is taken.
PARTS: dict[str, str] = {
    # Launchers. torchrun --tee puts the role and the local rank before a line, torch's own hook the rank.
    "rank": r"\[rank(?P<rank>\d{1,9})\]:?",
    "torchrun": r"\[(?!rank)[A-Za-z_]{1,40}(?P<local>\d{1,6})\]:",
    "horovodrun": r"\[(?P<rank>\d{1,9})\]<(?P<stream>stdout|stderr)>:",
    "mpirun": r"\[\d+,(?:mpirank:)?(?P<rank>\d{1,9})(?:,(?P<host>[\w.-]+))?\]<(?P<stream>stdout|stderr)>:",
    "ray": r"\((?:(?P<worker>[A-Za-z_][\w.:+ -]*?)(?:\([^()]*\))?,? ?)??(?:rank=(?P<rank>\d{1,9}),? )?"
    r"pid=(?P<pid>\d{1,9})(?:, ip=(?P<host>[\w.:-]+))?\)",
    "raylet": r"\((?P<worker>raylet|gcs_server|autoscaler)(?:[ +\w]*)(?:, ip=(?P<host>[\w.:-]+))?\)",
    # Containers and schedulers.
    "pod": r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\]",
    "cri": rf"(?P<time>{STAMP}) (?P<stream>stdout|stderr) [FP](?: |$)",
    "compose": r"(?P<host>[A-Za-z][\w.-]*[-_]\d+) +\|",
    "syslog": r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:?\d\d) (?P<host>[\w.-]+) "
    r"(?P<worker>[\w./-]+(?:\[\d{1,9}\])?):",  # the pid is the unit's, and may be a launcher's
    "dmesg": r"(?:<\d+>)?\[ *\d+\.\d{3,6}\]",
    "dmesg -T": r"\[(?P<time>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]",
    "pdsh": r"(?P<host>[A-Za-z][\w.-]*\d|\d{1,3}(?:\.\d{1,3}){3}): ?(?=\[|\(|\d{4}-|Traceback |  File |    |[EWIF]\d{4} )",
    # Loggers of C++, and those that copy them.
    "glog": rf"\[(?P<level>[EWIFCD])(?:\d{{3,4}})?(?: (?P<time>{CLOCK}))?(?: +\d+)? {FILE}\]",
    "bare glog": rf"(?P<level>[EWIFC])\d{{4}} (?P<time>{CLOCK}) +(?P<pid>\d{{1,9}}) {FILE}\]",
    "nccl": r"(?P<host>[\w.-]+):(?P<pid>\d{1,9}):\d+ \[(?P<device>-?\d{1,4})\](?= .*NCCL |[^\]]*NCCL )",
    "nemo": rf"\[NeMo (?P<level>[DIWEC]) (?P<time>{STAMP}) [\w.]+:\d+\]",
    # Python's.
    "loguru": rf"(?P<time>{STAMP}) *\| *{LEVEL} *\|(?: [\w.<>-]+:[\w<>-]+:\d+ -)?",
    "named": rf"(?P<time>{STAMP}) ?[-|] ?[\w.<>\[\]-]+ ?[-|] ?{LEVEL} *(?:[-|]|:)",
    "levelled": rf"(?P<time>{STAMP}) ?[-|]? ?\[?{LEVEL}\]?(?: *[-|:](?: [\w.<>]+ -)?|(?= ))",
    "vllm": rf"{LEVEL} (?P<time>\d\d-\d\d {CLOCK}) \[?{FILE}\]",
    "transformers": rf"\[{LEVEL}\|{FILE}\] (?P<time>{STAMP}) >>",
    "basic": rf"{LEVEL}:[\w.-]+:",
    "bracketed": rf"\[(?P<time>{STAMP})\](?:,?\[(?!rank|Rank|RANK|\d|{LEVEL.replace('?P<level>', '?:')}\]|[EWICDF]\])[\w./ -]+\](?=[\[ ]))?(?: -(?= ))?",
    "level": rf"\[(?:{LEVEL}|(?P<letter>[EWICDF]))\](?: -(?= ))?",
    "file": rf"\[{FILE}\]",
    "stamp": rf"(?P<time>{STAMP})(?: -)?(?=[ \[|]|$)",
    # Ranks in words.
    "word": r"\[(?i:global[_ ]?)?(?i:rank)(?: ?[:=#-] ?| |)(?P<rank>\d{1,9})(?:/\d+)?\](?: ?:| -(?= )| \|\|(?= |$))?",
    "spelt": r"(?i:global[_ ]?)?(?i:rank)(?: |=|: ?)?(?P<rank>\d{1,9})(?:/\d+)?(?: ?:(?= |$)| ?\||,? -(?= )|,(?= )|(?<==\d)(?= )|(?<==\d\d)(?= ))",
    "brackets": r"\((?i:rank)(?: |=|: ?)(?P<rank>\d{1,9})\):?",
    "bar": r"r(?P<rank>\d{1,9})\|",
    "label": r" {0,5}(?P<label>\d{1,6}): (?!$)",
}  # fmt: skip
BY_NAME = {name: re.compile(pattern) for name, pattern in PARTS.items()}
# Parts that can begin with a character, so that few are tried.
OPENS = {
    "[": (
        "rank", "glog", "torchrun", "pod", "mpirun", "horovodrun", "word", "bracketed", "level", "transformers", "nemo", "file", "dmesg", "dmesg -T",
    ),
    "(": ("ray", "raylet", "brackets"),
    "<": ("dmesg",),
}  # fmt: skip
OPENS_WITH_DIGIT = ("cri", "syslog", "loguru", "named", "levelled", "stamp", "nccl", "pdsh", "label")
OPENS_WITH_LETTER = ("bare glog", "spelt", "bar", "basic", "vllm", "syslog", "compose", "nccl", "pdsh")
# What only ever stands first, before the line as the process wrote it.
ONLY_OUTSIDE = frozenset({"label", "compose", "pdsh", "syslog"})
LEVELS = {"e": "error", "w": "warning", "i": "info", "f": "fatal", "c": "critical", "d": "debug", "warn": "warning"}  # fmt: skip
# vLLM's name of a worker where there is tensor parallelism alone: its rank. With several dimensions nothing says it.
TENSOR_PARALLEL = re.compile(r"Worker_TP(\d+)$")


def parsed(text: str) -> tuple[Prefix, str]:
    """Split a line into its prefix and its message."""
    found: dict[str, str] = {}
    position = 0
    for count in range(MOST_PARTS):
        part = _part(text, position, is_first=not count or found.get("outside") == str(count))
        if part is None:
            break
        name, match = part
        if name in ONLY_OUTSIDE or name in ("cri", "stamp", "pod", "mpirun"):
            found["outside"] = str(count + 1)
        for key, value in match.groupdict().items():
            if value is not None:
                found.setdefault(key, value)
        position = _behind(text, match.end())
    return (_prefix(found), text[position:]) if found else (NO_PREFIX, text[position:])


def _part(text: str, position: int, *, is_first: bool) -> tuple[str, re.Match[str]] | None:
    first = text[position : position + 1]
    if first in OPENS:
        names: tuple[str, ...] = OPENS[first]
    elif first.isdigit():
        names = OPENS_WITH_DIGIT
    elif first.isalpha():
        names = OPENS_WITH_LETTER
    elif first == " " and not position:
        names = ("label",)
    else:
        return None
    for name in names:
        if (is_first or name not in ONLY_OUTSIDE) and (match := BY_NAME[name].match(text, position)):
            return name, match
    return None


def _behind(text: str, position: int) -> int:
    """The begin of what follows: lines are indented by an even number of spaces, so that an odd one has the prefix's own."""
    end = position
    while text.startswith(" ", end):
        end += 1
    return position + (end - position) % 2


def _prefix(found: dict[str, str]) -> Prefix:
    level = (found.get("level") or found.get("letter") or "").lower()
    return Prefix(
        speaker=speaker_of(
            _number(found, "rank") if "rank" in found else _number(found, "label"),
            _number(found, "local"),
            _number(found, "pid"),
            found.get("host", ""),
            found.get("worker", ""),
            is_label="rank" not in found and "label" in found,
        ),
        level=LEVELS.get(level, level),
        time=found.get("time", ""),
        stream=found.get("stream", ""),
        device=_number(found, "device"),
    )


def _number(found: dict[str, str], name: str) -> int | None:
    return int(found[name]) if name in found else None


@functools.lru_cache(maxsize=16384)
def speaker_of(
    rank: int | None, local: int | None, pid: int | None, host: str, worker: str, *, is_label: bool = False
) -> Speaker:
    """The process that is meant: one object for all its lines."""
    if rank is None and (named := TENSOR_PARALLEL.match(worker)):
        rank = int(named[1])
    if rank is None and local is None and pid is None and not host and not worker:
        return NOBODY
    return Speaker(rank=rank, local_rank=local, pid=pid, host=host, worker=worker, is_label=is_label)
