"""The wait-for graph of ranks, over all groups and transfers: a rank that is waited for and waits for no peer is a root."""

from __future__ import annotations

from collections.abc import Hashable
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
    """The same between ranks, with the record that shows it."""

    source: Annotated[str, "the record that shows it"]


W_co = TypeVar("W_co", bound="Wait[Any]", covariant=True)


@dataclass(frozen=True, kw_only=True)
class WaitGraph(Generic[K, W_co]):
    """Waits between ranks, or between calls and actors."""

    edges: tuple[W_co, ...]

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


@dataclass(frozen=True, kw_only=True)
class Graph(WaitGraph[int, Edge]):
    """Waits between ranks."""

    met: frozenset[int] | None = (
        None  # of others nothing is known but that they are waited for; None: of nobody
    )

    def roots(self) -> tuple[int, ...]:
        """Ranks that are waited for, and that wait for no peer: what they do explains all who wait."""
        waited_for = {edge.waited_for for edge in self.edges}
        known = waited_for if self.met is None else waited_for & self.met
        return tuple(sorted(known - self.waiters))

    def cycles(self) -> tuple[tuple[int, ...], ...]:
        """Sets of ranks each of which waits, in the end, for itself."""
        reach = {rank: self.reached_from(rank) for rank in self.waiters}
        inside = {rank for rank in reach if rank in reach[rank]}
        found = {tuple(sorted(r for r in reach[rank] & inside if rank in reach[r])) for rank in inside}
        return tuple(sorted(found))


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
