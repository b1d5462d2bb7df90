"""The cleaner of plain text for a terminal, a pipe or a log."""

from __future__ import annotations

from nsadiag.printing import Shown, for_terminal


class Plain(Shown):
    """For a terminal."""

    __slots__ = ()


def plain(text: object) -> Plain:
    """The text as a terminal may have it."""
    return Plain(for_terminal(text))
