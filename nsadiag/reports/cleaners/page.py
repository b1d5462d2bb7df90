"""The cleaner of HTML. The template engine escapes what it shows; here is what it does not know."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from nsadiag.printing import Shown, clean
from nsadiag.reports.cleaners.inline import ticked


class Page(Shown):
    """A whole page."""

    __slots__ = ()


def finalized(value: Any) -> Any:
    """The value as a template shows it: control characters are no HTML. Markup was made by the templates themselves."""
    return value if isinstance(value, Markup) else clean(value)


def with_code(text: str) -> Markup:
    """Text with its `code` as such; all of it escaped."""
    parts = ((escape(part), is_code) for part, is_code in ticked(clean(text)))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if is_code else part for part, is_code in parts
    )


def page(text: str) -> Page:
    """A page that a template made, in which every value was escaped."""
    return Page(text)
