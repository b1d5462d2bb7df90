"""The cleaner of Markdown, as GitHub renders it in a repository, an issue and a summary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from nsadiag.printing import Shown, clean, one_line
from nsadiag.reports.cleaners.inline import ON_GITHUB, pieces

_ANYWHERE = re.compile(r"[\\`*\[\]<>|~]|&(?=[#\w]+;)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What opens a heading, a list or a rule; bots take a line that begins with `/name` for a command.
_AT_THE_START = re.compile(r"^(?:[-+#=](?=\s|#|-|=|$)|/(?=[a-z])|\d+(?=[.)](?:\s|$)))")
_PIPE = re.compile(r"(\\*)\|")


class Markdown(Markup, Shown):
    """Markdown. Whatever else is added, joined or formatted into it is escaped."""

    __slots__ = ()

    @classmethod
    def escape(cls, s: Any, /) -> Markdown:
        """The value as a template shows it: as text in one line, unless it is Markdown already."""
        if isinstance(s, Markup):
            return cls(s)
        text = str(s)
        # A sentence may go on with it.
        return cls(f"{' ' if text[:1].isspace() else ''}{escape(text)}")


def escape(text: object) -> Markdown:
    """The text in one line, with its `code` as such; what Markdown, GitHub, HTML or maths would take as theirs is not.

    An underscore inside a word is left alone, as GitHub leaves it: class names stay readable raw. A mention, an address or
    `#1` is code, as no escape keeps GitHub from making something of it.
    """
    line = ""
    for part, is_code in pieces(one_line(text), ON_GITHUB):
        shown = str(code(part)) if is_code else _ANYWHERE.sub(r"\\\g<0>", part)
        # Two runs of backticks side by side would be one.
        line += f" {shown}" if line.endswith("`") and shown.startswith("`") else shown
    start = _AT_THE_START.match(line)
    if not start:
        return Markdown(line)
    end = start.end()
    # "12." needs its dot escaped, "- " its first character.
    return Markdown(f"{line[:end]}\\{line[end:]}" if line[:end].isdigit() else f"\\{line}")


def code(text: object) -> Markdown:
    """A code span; its fence is longer than any run of backticks in the text."""
    line = one_line(text)
    fence = "`" * (1 + _longest_run(line))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return Markdown(f"{fence}{space}{line}{space}{fence}" if line else "")


def block(text: object, language: str = "text") -> Markdown:
    """A fenced block that the text cannot close."""
    body = clean(text).strip("\n")
    fence = "`" * max(3, 1 + _longest_run(body))
    return Markdown(f"{fence}{language}\n{body}\n{fence}")


def link(text: Markdown, href: str | None) -> Markdown:
    """The text, leading to an address that was made by `nsadiag.reports.sources`; without one the text alone."""
    return Markdown(f"[{text}]({href})") if href else text


def table(header: Sequence[Markdown], rows: Sequence[Sequence[Markdown]], right: int = 0) -> Markdown:
    """A table padded so that it is one in plain text too; the last `right` columns are numbers."""
    cells = [[_PIPE.sub(_escaped, text) for text in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]
    first_right = len(header) - right
    rule = [f"{'-' * (w - 1)}:" if i >= first_right else "-" * w for i, w in enumerate(widths)]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.rjust(w) if i >= first_right else text.ljust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    return Markdown("\n".join(line(row) for row in (cells[0], rule, *cells[1:])))


def _escaped(pipe: re.Match[str]) -> str:
    """A bar ends a cell, in code as well, unless a backslash stands before it that is not escaped itself."""
    return pipe[0] if len(pipe[1]) % 2 else f"{pipe[1]}\\|"


def document(text: str) -> Markdown:
    """A document that a template made, in which every value went through `Markdown.escape`."""
    # Optional parts leave blank lines behind; nothing in the document means more than one of them.
    return Markdown(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def paragraphs(parts: Sequence[Markdown]) -> Markdown:
    """A document of these, ending in a newline."""
    return Markdown("\n\n".join(parts) + "\n")


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
