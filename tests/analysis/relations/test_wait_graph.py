"""Who waits for whom, over groups and transfers."""

from nsadiag.analysis.relations.wait_graph import Edge, Graph


def graph(*pairs: tuple[int, int]) -> Graph:
    return Graph(
        edges=tuple(Edge(waiter=a, waited_for=b, what="all_reduce 1", source="fr.json") for a, b in pairs)
    )


def test_the_root_is_who_is_waited_for_and_waits_for_nobody() -> None:
    assert graph((0, 1), (1, 2), (3, 1)).roots() == (2,)


def test_a_cycle_has_no_root() -> None:
    found = graph((0, 1), (1, 0), (2, 0))
    assert found.roots() == ()
    assert found.cycles() == ((0, 1),)


def test_two_cycles_are_told_apart() -> None:
    assert graph((0, 1), (1, 0), (2, 3), (3, 2)).cycles() == ((0, 1), (2, 3))


def test_what_a_rank_waits_for_goes_through_others() -> None:
    found = graph((0, 1), (1, 2))
    assert found.reached_from(0) == {1, 2}
    assert found.reached_from(2) == set()
