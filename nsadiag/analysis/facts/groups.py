"""Process groups by name and members."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence import recorder
from nsadiag.evidence.recorder import OF_WATCHDOG, Dump, Entry, backend_of, is_nccl

Members = frozenset[int]
UNNAMED = ("", "undefined")
DEFAULT = ("default_pg", "0", *UNNAMED)  # what dumps call the group of all ranks
MOST_SHOWN = 6
OF_BACKEND = re.compile(r" \(\w+\)$")  # of calls that one of a group's backends numbers by itself


def raw_name(name: str, description: str) -> str:
    """A rank's name for the group: the description where there is one, since gloo's numbers differ from its pg_config's."""
    return str(description if description not in UNNAMED else name)


def newest_dump(rank: RankEvidence) -> Dump:
    """The flight recorder's, of the last capture that has one."""
    return next((c.flight_recorder for c in reversed(rank.captures) if c.flight_recorder), Dump())


def is_of_a_log(rank: RankEvidence) -> bool:
    """Whether what is known of the rank's calls is what NCCL's watchdog said of them in a log."""
    return newest_dump(rank).get("version") == OF_WATCHDOG


def shown(members: Iterable[int]) -> str:
    """`0-3,6`."""
    runs: list[list[int]] = []
    for rank in sorted(members):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a},{b}" for a, b in runs]
    more = f",+{len(parts) - MOST_SHOWN}" if len(parts) > MOST_SHOWN else ""
    return ",".join(parts[:MOST_SHOWN]) + more


@dataclass(frozen=True)
class Groups:
    """All groups of the job, as their members know them."""

    cell: CellEvidence

    @cached_property
    def _known(self) -> dict[int, dict[str, Members]]:
        known = {rank.rank: _known_to(rank) for rank in self.cell.ranks}
        return {
            number: {name: members - self._strangers(known, number, name) for name, members in groups.items()}
            for number, groups in known.items()
        }

    def _strangers(self, known: dict[int, dict[str, Members]], member: int, name: str) -> Members:
        """Ranks that the numbers are not about: a group that was created is known to all of its members, if by another name.

        One that is made beside torch's functions, with processes of another launcher, counts these from 0 as well.
        """
        settings, members = self._ranks[member].settings, known[member][name]
        # Torch's own names are numbers, counted on each rank: another number there may be the same group.
        if (
            name in DEFAULT
            or name.isdigit()
            or name not in {raw_name(g.name, g.description) for g in settings.groups}
        ):
            return frozenset()
        others = [self._ranks[n] for n in members if n != member and n in self._ranks]
        return frozenset(
            r.rank for r in others
            if r.settings.step >= settings.step > 0 and _never_met(r, name)
            and not any(m == members and n not in (*DEFAULT, *known[member]) for n, m in known[r.rank].items())
        )  # fmt: skip

    @cached_property
    def _ranks(self) -> dict[int, RankEvidence]:
        return {rank.rank: rank for rank in self.cell.ranks}

    @cached_property
    def _sets(self) -> dict[str, set[Members]]:
        found: dict[str, set[Members]] = {}
        for known in self._known.values():
            for name, members in known.items():
                found.setdefault(name, set()).add(members)
        return found

    @cached_property
    def _by_label(self) -> dict[str, Members]:
        return {
            self._labelled(name, members): members for name, sets in self._sets.items() for members in sets
        }

    def _labelled(self, name: str, members: Members) -> str:
        return name if len(self._sets[name]) == 1 else f"{name}[{shown(members)}]"

    def label(self, rank: int, name: str) -> str:
        """The group that the rank means by its raw name; with its members where others mean others by it."""
        members = self._known.get(rank, {}).get(name)
        return self._labelled(name, members) if members is not None else name

    def label_of(self, rank: int, entry: Entry) -> str:
        """The group of a recorded call. One on the host, of a group that has NCCL too (`cuda:nccl,cpu:gloo`), is numbered apart."""
        name = raw_name(*entry["process_group"])
        label = self.label(rank, name)
        return label if is_nccl(entry) or name not in self._on_device else f"{label} ({backend_of(entry)})"

    @cached_property
    def _on_device(self) -> set[str]:
        """Raw names of groups for which any rank's NCCL has recorded a call."""
        entries = (entry for rank in self.cell.ranks for entry in newest_dump(rank).get("entries", []))
        return {raw_name(*entry["process_group"]) for entry in entries if is_nccl(entry)}

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the groups whose members somebody names."""
        return tuple(self._by_label)

    def is_known(self, label: str) -> bool:
        """Whether anybody says who is in it, or its name does."""
        return OF_BACKEND.sub("", label) in {*self._by_label, *DEFAULT}

    def members(self, label: str) -> Members:
        """Ranks of the group, all ranks where nobody says; of very many those that are looked at, or left nothing."""
        return self._by_label.get(OF_BACKEND.sub("", label), self.cell.met) & self.cell.met or self.cell.met


def _never_met(rank: RankEvidence, name: str) -> bool:
    """Whether neither the rank's settings nor its calls name the group, and both could be read."""
    groups, entries = rank.settings.groups, newest_dump(rank).get("entries", [])
    named = {raw_name(g.name, g.description) for g in groups}
    called = {
        raw_name(*map(str, e["process_group"])) for e in entries if len(e.get("process_group") or ()) == 2
    }
    return bool(groups and entries) and name not in named | called


def _known_to(rank: RankEvidence) -> dict[str, Members]:
    """By raw name. Where one name means several groups to the same rank, it is left out."""
    said: dict[str, set[Members]] = {}
    for group in rank.settings.groups:
        if group.ranks:
            said.setdefault(raw_name(group.name, group.description), set()).add(frozenset(group.ranks))
    for config in newest_dump(rank).get("pg_config", {}).values():
        name = raw_name(str(config.get("name")), str(config.get("desc") or ""))
        # A number of gloo's is no name: pg_config counts other than the entries do.
        members = _listed(config.get("ranks"))
        if members and (name not in said or not name.isdigit()):
            said.setdefault(name, set()).add(members)
    return {name: next(iter(sets)) for name, sets in said.items() if len(sets) == 1}


def _listed(ranks: Any) -> Members:
    """From `"[0, 1]"`, or a list."""
    return recorder.member_ranks(ranks if isinstance(ranks, str) else str(list(ranks or ())))
