"""The picture of who waits for whom: ranks that wait alike in one node, the culprit at the bottom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.actors.stuck import waits_between
from nsadiag.evidence.blocking import OF_ITS_PROCESS
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.spans import spans
from nsadiag.evidence.user_code import is_user
from nsadiag.reports.pictures.standing import role, standing

MOST_NODES = 12
MOST_THREADS = 2
NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y, MARGIN = 300, 72, 30, 56, 14
INSET, TURN, RAIL = (
    18,
    12,
    20,
)  # of arrows of a circle: from a node's corner, beyond its edge, and beside all nodes
CHARACTER = 6.6  # the width of one in a label, about
MOST_LABEL = 34  # characters of a label
NARROW = 600  # up to here there is room for other things beside the picture
MOST_CHARACTERS = 42  # of a line in a node


@dataclass(frozen=True, kw_only=True)
class Node:
    """Ranks that stand alike, or a thread of the guilty one."""

    key: str
    title: str
    role: str
    says: str
    x: float = 0.0
    y: float = 0.0

    @property
    def lines(self) -> list[str]:
        """The text on two lines: the state, and file and line without the function."""
        state, _, place = self.says.partition(", ")
        return [_fitting(part) for part in (state, place.partition(" in ")[0]) if part]


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """One node waits for another.

    An arrow of a circle goes against the direction of the others: by a `rail`, the x of a vertical line beside all nodes.
    Arrows with one start and one label share a rail, and the label.
    """

    start: Node
    end: Node
    label: str
    rail: float | None = None
    label_at: tuple[float, float] | None = None  # None: another arrow bears it

    @property
    def path(self) -> str:
        """From the waiter's box to the other's."""
        if self.rail is None:
            x1, x2 = self.start.x + NODE_WIDTH / 2, self.end.x + NODE_WIDTH / 2
            y1, y2 = self.start.y + NODE_HEIGHT, self.end.y
            middle = (y1 + y2) / 2
            return f"M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2 - 2:.0f}"
        # Out beneath the start and into the top of the end: between rows there is no box in the way.
        leaves, below = self.start.x + NODE_WIDTH - INSET, self.start.y + NODE_HEIGHT
        enters, above = self.end.x + NODE_WIDTH - INSET, self.end.y
        return (
            f"M{leaves:.0f} {below:.0f}V{below + TURN:.0f}H{self.rail:.0f}"
            f"V{above - TURN:.0f}H{enters:.0f}V{above - 2:.0f}"
        )


@dataclass(frozen=True, kw_only=True)
class WaitPicture:
    """The picture, and the same in sentences."""

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    width: float
    height: float
    left_out: int

    @property
    def is_narrow(self) -> bool:
        return self.width <= NARROW

    @property
    def sentences(self) -> list[str]:
        """One for each arrow."""
        return [
            f"{a.start.title} {'wait' if a.start.title.startswith('ranks') else 'waits'} for {a.end.title}: {a.label}"
            for a in self.arrows
        ]


def _fitting(text: str) -> str:
    """The beginning and the end, where all of it is too long: a file's line stands at the end."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[: MOST_CHARACTERS // 2 - 1]}…{text[-MOST_CHARACTERS // 2 :]}"


def waits_of(case: Case, verdict: Verdict | None) -> WaitPicture | None:
    """None where nobody waits for anybody."""
    edges = _edges(case, verdict)
    if not edges or verdict is None or verdict.outcome not in ("hung", "crashed", "unknown", "incomplete"):
        return None
    said = _said(case, edges)
    groups = _groups(case, verdict, edges, said)
    node_of = {rank: node for node, ranks in groups for rank in ranks}
    found: dict[tuple[str, str], Counter[str]] = {}
    for waiter, waited_for, what in edges:
        start, end = node_of[waiter], node_of[waited_for]
        if start is not end:
            found.setdefault((start.key, end.key), Counter())[what] += 1
    arrows = [(start, end, labels.most_common(1)[0][0]) for (start, end), labels in found.items()]
    nodes = [node for node, _ in groups]
    threads, owns = _threads(case, verdict)
    return _laid_out([*nodes, *threads], [*arrows, *owns])


def _edges(case: Case, verdict: Verdict | None) -> list[tuple[int, int, str]]:
    edges = [(edge.waiter, edge.waited_for, edge.what) for edge in case.once(waits_between)]
    if edges or verdict is None:
        return edges
    waits = [(waiter, wait) for wait in verdict.peer_waits if wait.now_s for waiter in wait.waiters]
    if waits or verdict.outcome != "hung":
        return [(waiter, wait.rank, wait.what or "") for waiter, wait in waits]
    # By stacks alone nobody knows in which call; the verdict says who is blocked by whom.
    known = {rank.rank for rank in case.cell.ranks}
    blocked = [rank for rank in verdict.blocked_ranks if rank in known and rank not in verdict.guilty]
    return [(rank, guilty, "blocked by it") for guilty in verdict.guilty_ranks[:1] for rank in blocked]


def _said(case: Case, edges: Iterable[tuple[int, int, str]]) -> dict[int, str]:
    known = {rank.rank: rank for rank in case.cell.ranks}
    ranks = {rank for waiter, waited_for, _ in edges for rank in (waiter, waited_for)}
    return {rank: standing(case, known[rank]) if rank in known else "left no evidence" for rank in ranks}


def _groups(
    case: Case, verdict: Verdict, edges: Sequence[tuple[int, int, str]], said: dict[int, str]
) -> list[tuple[Node, list[int]]]:
    """Ranks in one node that have the same part, stand alike and wait for the same; the guilty first."""
    targets: dict[int, set[tuple[int, str]]] = {rank: set() for rank in said}
    for waiter, waited_for, what in edges:
        targets[waiter].add((waited_for, what))
    alike: dict[tuple[str, str, frozenset[str], int], list[int]] = {}
    for rank in sorted(said):
        part = role(verdict, rank)
        # Ranks of a circle wait for each other, and so each for others than its neighbours do.
        waits_for = frozenset(what for _, what in targets[rank])
        alike.setdefault((part, said[rank], waits_for, rank if part == "guilty" else -1), []).append(rank)
    found = []
    for (part, words, *_), ranks in alike.items():
        everyone = case.cell.everyone(ranks)
        title = f"rank {everyone[0]}" if len(everyone) == 1 else f"ranks {spans(everyone)}"
        key = f"rank {ranks[0]}"
        found.append((Node(key=key, title=title, role=part, says=words), ranks))
    return sorted(found, key=lambda each: (each[0].role != "guilty", each[0].role != "blocked"))


def _threads(case: Case, verdict: Verdict) -> tuple[list[Node], list[tuple[str, str, str]]]:
    """The threads of a guilty rank that waits for its own: only they could wake it."""
    nodes: list[Node] = []
    arrows: list[tuple[str, str, str]] = []
    for number in verdict.guilty_ranks[:1]:
        state = case.thread_states.get(number)
        if state is None or state.doing not in OF_ITS_PROCESS:
            continue
        capture = [c for c in case.cell.rank(number).captures if c.stacks][-1]
        for thread in capture.other_threads:
            frame = next((f for f in thread.frames if is_user(f.filename)), None)
            if frame is None or len(nodes) == MOST_THREADS:
                continue
            at = locations.short(locations.place(frame.filename, frame.line, frame.name))
            key = f"thread {len(nodes)}"
            title = f"{thread.title} of rank {number}"
            nodes.append(Node(key=key, title=title, role="thread", says=f"in {thread.frames[0].name}, {at}"))
            arrows.append((f"rank {number}", key, "only this thread could wake it"))
    return nodes, arrows


def _laid_out(nodes: Sequence[Node], arrows: Sequence[tuple[str, str, str]]) -> WaitPicture | None:
    """Rows by the distance to the culprit, which stands at the bottom, its own threads beneath it."""
    kept = nodes[:MOST_NODES] if len(nodes) > MOST_NODES else nodes
    keys = {node.key for node in kept}
    arrows = [arrow for arrow in arrows if arrow[0] in keys and arrow[1] in keys]
    if not arrows:
        return None
    level = _levels(kept, arrows)
    rows: dict[int, list[Node]] = {}
    for node in kept:
        rows.setdefault(level[node.key], []).append(node)
    widest = max(map(len, rows.values()))
    inner = widest * NODE_WIDTH + (widest - 1) * GAP_X
    placed: dict[str, Node] = {}
    for number, depth in enumerate(sorted(rows, reverse=True)):
        row = rows[depth]
        left = MARGIN + (inner - len(row) * NODE_WIDTH - (len(row) - 1) * GAP_X) / 2
        for place, node in enumerate(row):
            x, y = left + place * (NODE_WIDTH + GAP_X), MARGIN + number * (NODE_HEIGHT + GAP_Y)
            placed[node.key] = replace(node, x=x, y=y)
    circle = any(level[a] <= level[b] for a, b, _ in arrows)
    height = len(rows) * NODE_HEIGHT + (len(rows) - 1) * GAP_Y + 2 * MARGIN
    if circle:
        placed = {key: replace(node, y=node.y + TURN) for key, node in placed.items()}
        height += 2 * TURN
    drawn = _drawn(placed, arrows, level, MARGIN + inner)
    return WaitPicture(
        nodes=tuple(placed.values()),
        arrows=drawn,
        width=max([inner + 2 * MARGIN, *(_right_end(arrow) + MARGIN for arrow in drawn)]),
        height=height,
        left_out=len(nodes) - len(kept),
    )


def _right_end(arrow: Arrow) -> float:
    """The right end of its rail and the label beside it."""
    if arrow.rail is None or arrow.label_at is None:
        return 0.0
    return arrow.label_at[0] + CHARACTER * min(len(arrow.label), MOST_LABEL)


def _drawn(
    placed: Mapping[str, Node],
    arrows: Sequence[tuple[str, str, str]],
    level: Mapping[str, int],
    right: float,
) -> tuple[Arrow, ...]:
    """The arrows, those of circles on rails right of the nodes; no label lies on another."""
    starts = [(a, label) for a, b, label in arrows if level[a] <= level[b]]
    rails = {key: right + RAIL * (n + 1) for n, key in enumerate(dict.fromkeys(starts))}
    beside = right + RAIL * len(rails) + 8
    forward = Counter(a for a, b, _ in arrows if level[a] > level[b])
    found: list[Arrow] = []
    labelled: set[tuple[float, float] | None] = set()
    for a, b, label in arrows:
        start, end = placed[a], placed[b]
        rail = rails.get((a, label)) if level[a] <= level[b] else None
        if rail is not None:
            # Each at the height at which its arrow leaves; of rails that leave at one height, one below the other.
            y = (
                start.y
                + NODE_HEIGHT
                + TURN
                - 14 * sum(x < rail and placed[k[0]].y == start.y for k, x in rails.items())
            )
            at: tuple[float, float] | None = (beside, y)
        else:
            # Beside the end that this arrow has alone: arrows meet at the other.
            middle = start if forward[a] == 1 else end
            at = (middle.x + NODE_WIDTH / 2, (start.y + NODE_HEIGHT + end.y) / 2 + 4)
        if at in labelled:
            at = None
        else:
            labelled.add(at)
        found.append(Arrow(start=start, end=end, label=label, rail=rail, label_at=at))
    return tuple(found)


def _levels(nodes: Sequence[Node], arrows: Sequence[tuple[str, str, str]]) -> dict[str, int]:
    """The number of arrows to the culprit; its threads are below it."""
    level = {node.key: -1 for node in nodes if node.role == "thread"}
    ends = {end for _, end, _ in arrows} - {start for start, end, _ in arrows if end not in level}
    guilty = [n.key for n in nodes if n.role == "guilty"]
    # Guilty ones that wait for each other stand one above the other.
    roots = [key for key in guilty if not any(a == key and b in guilty for a, b, _ in arrows)]
    roots = roots or guilty[:1] or [n.key for n in nodes if n.key in ends]
    roots = roots or [nodes[0].key]
    level |= dict.fromkeys(roots, 0)
    todo = list(roots)
    while todo:
        key = todo.pop(0)
        for start, end, _ in arrows:
            if end == key and start not in level:
                level[start] = level[key] + 1
                todo.append(start)
    return {node.key: level.get(node.key, 1) for node in nodes}
