"""A shrinking in words: for a terminal and as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nsadiag.printing import clean
from nsadiag.reports.cleaners.markdown import Markdown, block, code, escape, paragraphs
from nsadiag.reports.words import duration

Document = Mapping[str, Any]


def summary(document: Document) -> str:
    """The answer in one sentence."""
    took = f"{document['trials']} trials, {duration(document['seconds'])}"
    match document["conclusion"]:
        case "kept":
            return (
                f"{_cut(document)}, with the same verdict in "
                f"{document['confirmed']} of {document['confirmed']} fresh runs ({took})."
            )
        case "flaky":
            return (
                f"{_cut(document)}; the same verdict came in only "
                f"{document['confirmed']} of {document['confirmations']} fresh runs ({took})."
            )
        case "lost":
            return f"The failure did not come back when the job was run again: {document['why']}."
        case _:
            return "Not finished."


def _cut(document: Document) -> str:
    """`From 56 lines to 20`; a script from which nothing could go may have got lines for what it imports, or to start itself."""
    before, after = document["lines_before"], document["lines"]
    if after < before:
        return f"From {before} lines to {after}"
    return f"Nothing could be cut from its {before} lines: it is one file of {after} that starts its ranks by itself"


def lines(document: Document, directory: object) -> Iterator[str]:
    """For a terminal: the script, what it shows, the answer."""
    for source_line in str(document.get("source") or "").splitlines():
        yield f"  {clean(source_line)}"
    yield ""
    yield from (f"  {clean(note)}" for note in document["notes"])
    yield clean(summary(document))
    if document.get("script"):
        yield f"script: {directory}/{document['script']}"
        yield f"run: {clean(document['run'])}"


def markdown(document: Document) -> Markdown:
    """The document, ending in a newline."""
    parts = [Markdown("# {}").format(document["name"]), escape(summary(document))]
    if document.get("source"):
        parts += [Markdown("Run: {}").format(code(document["run"])), block(document["source"], "python")]
    return paragraphs([*parts, *(Markdown("- {}").format(note) for note in document["notes"])])
