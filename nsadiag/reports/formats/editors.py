"""Links that open a line in an editor, where the reader has named one: NSADIAG_EDITOR, or `nsadiag report --editor`."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from nsadiag.errors import UsageError, did_you_mean

VARIABLE = "NSADIAG_EDITOR"
EDITORS = {
    "vscode": "vscode://file{file}:{line}",
    "vscode-insiders": "vscode-insiders://file{file}:{line}",
    "cursor": "cursor://file{file}:{line}",
    "windsurf": "windsurf://file{file}:{line}",
    "zed": "zed://file{file}:{line}",
    "pycharm": "pycharm://open?file={file}&line={line}",
    "idea": "idea://open?file={file}&line={line}",
    "sublime": "subl://open?url=file://{file}&line={line}",
    "textmate": "txmt://open?url=file://{file}&line={line}",
}
# What a browser would run, or fetch, is no editor.
PATTERN = re.compile(
    r"(?!javascript|data|vbscript|blob|file|https?)[a-z][a-z0-9+.-]{1,30}:[^\s\"'<>]*\{file\}[^\s\"'<>]*"
)


def check(editor: str) -> str:
    """The name or pattern. Raises UsageError."""
    if editor not in EDITORS and not PATTERN.fullmatch(editor):
        hint = (
            did_you_mean(editor, EDITORS)
            or f"choose {', '.join(EDITORS)}, or give a pattern such as vim://{{file}}:{{line}}"
        )
        raise UsageError(f"no such editor: {editor}", hint)
    return editor


def link_to(file: str, line: int | None) -> str:
    """The address of a line; empty where no editor was named, the name is none, or the path does not say where the file is."""
    editor = os.environ.get(VARIABLE, "")
    pattern = EDITORS.get(editor) or (editor if PATTERN.fullmatch(editor) else "")
    if not pattern or not file.startswith("/"):
        return ""
    return pattern.replace("{file}", quote(file)).replace("{line}", str(line or 1))
