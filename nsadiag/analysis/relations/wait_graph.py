"""The wait-for graph, over ranks or over calls, actors and threads of several processes: who cannot go on without whom.

Who is waited for and waits for nobody is a root. A set that only its own members could wake stands for good: of a wait for all
of several (a collective needs each member) one that never comes is enough, a wait for any of them goes on until none is left.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.device_queue import computes_before, first_call
from nsadiag.analysis.facts.thread_state import is_in_transfer
from nsadiag.analysis.relations.pending import waits
from nsadiag.evidence.phrases import call_name

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Wait(Generic[K]):
    """`waiter` cannot go on before `waited_for` does its part of `what`."""

    waiter: Annotated[K, "whoever waits"]
    waited_for: Annotated[K, "whoever it cannot go on without"]
    what: Annotated[str, "what it waits in: all_reduce 17 of default_pg, score()"]


@dataclass(frozen=True, kw_only=True)
class Edge(Wait[int]):
    """The same between ranks or processes, with the record that shows it."""

    source: Annotated[str, "the record that shows it"]


W_co = TypeVar("W_co", bound="Wait[Any]", covariant=True)


@dataclass(frozen=True, kw_only=True)
class WaitGraph(Generic[K, W_co]):
    """Waits between ranks, or between calls, actors and threads."""

    edges: tuple[W_co, ...]
    met: frozenset[K] | None = (
        None  # of others nothing is known but that they are waited for; None: of nobody
    )
    waiting: frozenset[K] = frozenset()  # can do nothing by themselves: they need all that they wait for
    any_of: frozenset[K] = frozenset()  # of these, whom any of what they wait for wakes
    called: frozenset[K] = frozenset()  # of these, whom any of `callers` may call
    callers: frozenset[K] = frozenset()
    never: frozenset[K] = frozenset()  # of these, whom nothing wakes: dead, stopped, locked by themselves

    @cached_property
    def out(self) -> dict[K, list[W_co]]:
        """The waits of each waiter."""
        found: dict[K, list[W_co]] = {}
        for edge in self.edges:
            found.setdefault(edge.waiter, []).append(edge)
        return found

    @property
    def waiters(self) -> frozenset[K]:
        """Whoever waits for another."""
        return frozenset(self.out)

    def waited_for_by(self, key: K) -> set[K]:
        """Whatever it waits for directly."""
        return {edge.waited_for for edge in self.out.get(key, ())}

    def reached_from(self, key: K) -> frozenset[K]:
        """Everything that it waits for, directly or through others."""
        found: set[K] = set()
        todo = [*self.waited_for_by(key)]
        while todo:
            each = todo.pop()
            if each not in found:
                found.add(each)
                todo.extend(self.waited_for_by(each))
        return frozenset(found)

    @cached_property
    def stuck(self) -> frozenset[K]:
        """The largest set that only its own members could wake: whoever another could wake is taken out, until nobody is."""
        found = {*self.waiting}
        while woken := {key for key in found - self.never if not self._is_held(key, found)}:
            found -= woken
        return frozenset(found)

    def _is_held(self, key: K, within: Collection[K]) -> bool:
        targets = self.callers if key in self.called else self.waited_for_by(key)
        held = [target in within for target in targets]
        # Who waits for nobody can wake itself.
        return bool(held) and (all if key in self.any_of | self.called else any)(held)

    def roots(self) -> tuple[K, ...]:
        """Whoever is waited for, and waits for nobody: what it does explains all who wait."""
        waited_for = {edge.waited_for for edge in self.edges}
        known = waited_for if self.met is None else waited_for & self.met
        return tuple(sorted(known - self.waiters))

    def cycles(self) -> tuple[tuple[K, ...], ...]:
        """Sets each member of which waits, in the end, for itself."""
        reach = {key: self.reached_from(key) for key in self.waiters}
        inside = {key for key in reach if key in reach[key]}
        found = {tuple(sorted(k for k in reach[key] & inside if key in reach[k])) for key in inside}  # type: ignore[type-var]
        return tuple(sorted(found))

    def closed_cycles(self) -> list[tuple[K, ...]]:
        """Those whose members wait only for others that wait too, so that nobody outside can wake them."""
        roots = set(self.roots())
        return [cycle for cycle in self.cycles() if not any(self.reached_from(key) & roots for key in cycle)]

    def cycle(self, key: K) -> list[K]:
        """The shortest way from it back to itself; empty where there is none."""
        ways, seen = [[key]], set[K]()
        while ways:
            way = ways.pop(0)
            for edge in self.out.get(way[-1], ()):
                if edge.waited_for == key:
                    return way
                if edge.waited_for not in seen:
                    seen.add(edge.waited_for)
                    ways.append([*way, edge.waited_for])
        return []


Graph = WaitGraph[int, Edge]


def graph_of(case: Case) -> Graph:
    """From collectives that are pending by sequence number, and from transfers that have not ended."""
    edges = [
        *_by_collectives(case),
        *_by_queues(case),
        *_by_calls(case),
        *_by_transfers(case),
    ]
    return Graph(edges=tuple(edges), met=case.cell.met)


def _by_collectives(case: Case) -> list[Edge]:
    found = []
    for wait in waits(case):
        for rank in wait.waiting:
            call = wait.call_of(rank)
            what, source = call_name(str(call.op), wait.seq, wait.group), wait.source(case.cell, rank)
            # A peer that issued something else under this number will never issue this.
            others = {*wait.missing, *wait.at_odds_with(rank)}
            found += [
                Edge(waiter=rank, waited_for=int(r), what=what, source=source)
                for r in sorted(others - {rank})
            ]
    return found


def _by_queues(case: Case) -> list[Edge]:
    """Under NCCL a rank has issued what its peer waits for, and stands in something else that was queued before it."""
    heads = {rank.rank: first for rank in case.cell.ranks if (first := first_call(case.groups, rank))}
    computing = {rank.rank for rank in case.cell.ranks if computes_before(rank)}
    found = []
    for rank, (group, seq) in heads.items():
        calls = case.calls[(case.calls.group == group) & (case.calls.seq == seq) & case.calls.pending]
        ops = {int(r): str(op) for r, op in calls[["rank", "op"]].itertuples()}
        found += [
            Edge(
                waiter=rank,
                waited_for=peer,
                what=call_name(ops[rank], seq, group),
                source=f"{case.cell.rank(rank).captures[-1].source}/fr.json",
            )
            for peer in ops
            if rank in ops
            and peer != rank
            and (peer in computing or heads.get(peer, (group, seq)) != (group, seq))
        ]
    return found


def _by_calls(case: Case) -> list[Edge]:
    """A rank that stands in a call which no recorder has: NCCL makes the group's communicator in its first one."""
    calls, found = case.asked, []
    unfinished = set(case.calls.loc[case.calls.pending.astype(bool), "rank"])
    for row in calls[calls.end_s.isna()].to_dict():
        rank, at = int(row["rank"]), case.thread_states.get(int(row["rank"]))
        if at is None or at.doing != "collective" or rank in unfinished:
            continue
        came = calls[(calls.group == row["group"]) & (calls.call >= row["call"])]
        found += [
            Edge(
                waiter=rank,
                waited_for=peer,
                what=f"{row['op']} {row['call']} of {row['group']}",
                source=f"{case.cell.rank(rank).source}/blackbox.bin",
            )
            for peer in sorted(case.groups.members(row["group"]) - {rank, *came["rank"]})
        ]
    return found


def _by_transfers(case: Case) -> list[Edge]:
    state = case.thread_states
    found = []
    unfinished = case.transfers[case.transfers.end_s.isna() & case.transfers.peer.notna()]
    for row in unfinished.to_dict():
        waiter, peer = int(row["rank"]), int(row["peer"])
        if not is_in_transfer(case.cell.rank(waiter), state.get(waiter)):
            continue
        word = "send to" if row["direction"] == "to" else "receive from"
        what = f"{row['op']}: {word} rank {peer}, tag {row['tag']}"
        source = f"ranks/{waiter:05d}/blackbox.bin"
        found.append(Edge(waiter=waiter, waited_for=peer, what=what, source=source))
    return found
