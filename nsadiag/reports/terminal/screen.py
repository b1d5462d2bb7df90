"""The way to a terminal: a console of rich's that cleans whatever is printed on it, and takes no markup from it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nsadiag.printing import ascii_only, for_terminal, unread
from nsadiag.reports.cleaners.plain import Plain, plain


class Screen(Console):
    """A console on which nothing that is printed acts: each piece of text is cleaned once it is laid out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of it, without what a terminal or GitHub's runner would obey."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(for_terminal(text), style)

    def on_broken_pipe(self) -> None:
        """As `show` has it; rich would end the process."""
        self.quiet = True
        unread()

    def write(self, text: str) -> None:
        """Text that was captured from this screen."""
        self.file.write(ascii_only(text) if self.options.ascii_only else text)


class Sheet(Screen):
    """A screen that is kept as text, as wide as COLUMNS says (80 otherwise)."""

    def __init__(self) -> None:
        self._kept = io.StringIO()
        super().__init__(file=self._kept, no_color=True, force_terminal=False, force_jupyter=False)

    def text(self) -> Plain:
        """The lines so far, without blanks at their ends."""
        return plain("".join(f"{line.rstrip()}\n" for line in self._kept.getvalue().split("\n")[:-1]))
