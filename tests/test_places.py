"""Places that events carry by number: those that `user_place` would write out."""

from nsadiag.worker.place import Places, user_place


class Names(dict[str, int]):
    """Numbers names from one, and keeps how often it was asked."""

    asked = 0

    def number(self, name: str) -> int:
        self.asked += 1
        return self.setdefault(name, len(self) + 1)


def test_each_line_has_its_own_number_and_its_name_is_written_out_once() -> None:
    names = Names()
    places = Places(names.number)
    seen = []
    for _ in range(3):
        first, written = places.here(), user_place()
        second = places.here()
        seen.append((first, second))
        assert names["\t" + written] == first
    assert seen == [(1, 2)] * 3
    assert names.asked == 2


def test_a_caller_is_found_through_code_that_is_not_the_users() -> None:
    names = Names()
    places = Places(names.number)
    through = min([0], key=lambda _: -places.here())
    assert through == 0
    # The standard library between the user's line and the question.
    import functools

    assert functools.reduce(lambda _, __: places.here(), [0, 0]) == 2
    assert [name.rpartition(":")[2] for name in names] == ["<lambda>", "<lambda>"]


def test_code_beyond_those_that_are_kept_is_still_found() -> None:
    names = Names()
    places = Places(names.number)
    places.MOST_CODES = 0
    assert [places.here() for _ in range(2)] == [1, 1]
    assert places._known == {}
