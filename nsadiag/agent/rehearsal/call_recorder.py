"""The flight recorder of a rehearsal: torch's own see no call that a process group in Python answers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass

from nsadiag.evidence.recorder import Dump, Entry, Frame, GroupConfig
from nsadiag.evidence.rehearsal.calls import CREATION, Call

MOST_CALLS = 500  # of a rank; torch's keep 2,000 of each process


@dataclass(eq=False)
class _Recorded:
    """A collective, from its announcement on."""

    call: Call
    seq: int
    wall_ns: int
    is_over: bool = False


class CallRecorder:
    """The newest collectives of each rank, numbered within their groups as a backend numbers them."""

    def __init__(self) -> None:
        self._calls: dict[int, deque[_Recorded]] = defaultdict(lambda: deque(maxlen=MOST_CALLS))
        self._open: dict[tuple[int, int], _Recorded] = {}
        self._seqs = Counter[tuple[int, str, tuple[int, ...]]]()
        self._groups: dict[int, dict[str, GroupConfig]] = defaultdict(dict)

    def announced(self, call: Call) -> None:
        """A call of a rank that is not made yet."""
        name, desc, members = call.group, call.description, str(list(call.members))
        self._groups[call.rank][name] = GroupConfig(name=name, desc=desc, ranks=members)
        if call.op == CREATION or call.is_transfer:
            return
        key = call.rank, call.group, call.members
        self._seqs[key] += 1
        recorded = _Recorded(call=call, seq=self._seqs[key], wall_ns=time.time_ns())
        self._calls[call.rank].append(recorded)
        self._open[call.rank, call.number] = recorded

    def made(self, calls: tuple[Call, ...]) -> None:
        """Calls that were matched, and computed."""
        for call in calls:
            if recorded := self._open.pop((call.rank, call.number), None):
                recorded.is_over = True

    def dump(self, rank: int) -> Dump:
        """The recorder of one rank, as torch writes its own."""
        entries = [_entry(recorded) for recorded in self._calls[rank]]
        return Dump(version="rehearsal", rank=rank, pg_config=self._groups[rank], entries=entries)


def _entry(recorded: _Recorded) -> Entry:
    call = recorded.call
    return Entry(
        process_group=[call.group, call.description],
        collective_seq_id=recorded.seq,
        profiling_name=f"rehearsal:{call.op}",
        input_sizes=[[elements] for elements, _ in call.tensors],
        input_dtypes=[dtype for _, dtype in call.tensors],
        state="completed" if recorded.is_over else "scheduled",
        retired=recorded.is_over,
        is_p2p=False,
        time_created_ns=recorded.wall_ns,
        frames=_frames(call.place),
    )


def _frames(place: str) -> list[Frame]:
    """The one that a rank names: `file:line:function`."""
    if place.count(":") < 2:
        return []
    file, line, function = place.rsplit(":", 2)
    return [Frame(name=function, filename=file, line=int(line))] if line.isdigit() else []
