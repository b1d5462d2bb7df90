"""Styled text for a screen, cleaned as it is made."""

from __future__ import annotations

from typing import Any

from rich import text

from nsadiag.printing import for_terminal


class Text(text.Text):
    """Text of rich's. Cleaned here, as rich would take away the end of an escape sequence, and leave the rest to be read."""

    def __init__(self, plain: str = "", style: Any = "", **options: Any) -> None:
        super().__init__(for_terminal(plain), style, **options)

    def append(self, plain: text.Text | str, style: Any = None) -> Text:
        """The same with more at its end."""
        super().append(for_terminal(plain) if isinstance(plain, str) else plain, style)
        return self

    @classmethod
    def assemble(cls, *parts: Any, **options: Any) -> Text:
        """Texts, and pairs of a text and its style, one after the other."""
        made = cls(**options)
        for part in parts:
            made.append(*part) if isinstance(part, tuple) else made.append(part)
        return made
