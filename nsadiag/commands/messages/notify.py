"""`--notify`: webhooks and commands that hear of a suspected hang, of its withdrawal, and of the verdict."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from nsadiag.errors import UsageError
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir
from nsadiag.evidence.records import Verdict
from nsadiag.printing import note
from nsadiag.reports.cleaners.chat import chat

SECONDS = 10.0  # for each webhook or command, while the verdict waits
SCHEMES = ("http", "https")


@dataclass(frozen=True, kw_only=True)
class Notifier:
    """Sends to each target; one that fails costs a line on stderr, and never the job or the verdict."""

    targets: tuple[str, ...]
    run: RunDir
    name: str

    def tell(self, event: str, text: str, verdict: Verdict | None = None) -> None:
        """`event` is suspected, withdrawn or verdict."""
        words = f"nsadiag: {self.name} on {platform.node()}: {text}"
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "event": event,
            "text": words,
            "name": self.name,
            "host": platform.node(),
            "directory": str(self.run.path.resolve()),
            "verdict": verdict.to_json() if verdict else None,
        }
        for number, target in enumerate(self.targets, start=1):
            try:
                if is_address(target):
                    # The form that Slack, Mattermost and Rocket.Chat take.
                    _post(target, {"text": chat(words)})
                else:
                    _call(target, document)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                which = f" (target {number} of {len(self.targets)})" if len(self.targets) > 1 else ""
                note(f"nsadiag: --notify failed{which}: {_reason(error)}")

    def verdict(self, verdict: Verdict) -> None:
        """The verdict's first lines."""
        where = verdict.where
        at = f" ({where.file}:{where.line})" if where and where.file and where.line else ""
        fix = f" {verdict.fix}" if verdict.fix else ""
        self.tell("verdict", f"{verdict.outcome.upper()} {verdict.summary}{at}{fix}", verdict)


def targets_in(text: str) -> tuple[str, ...]:
    """The targets in NSADIAG_NOTIFY: one on each line, as a command has blanks of its own."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def check(targets: Iterable[str]) -> None:
    """Raises UsageError for a target that cannot be notified."""
    for target in targets:
        _check(target)


def _check(target: str) -> None:
    if is_address(target):
        if not urlsplit(target).hostname:
            raise UsageError("--notify: the address names no host", "give https://HOST/PATH")
        return
    if "://" in target.partition(" ")[0]:
        raise UsageError(
            f"--notify: {target.partition(':')[0]} is no scheme that can be posted to",
            "give http:// or https://, or a command",
        )
    words = _words(target)
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"--notify: no such command: {words[0] if words else ''!r}",
            "give an address (https://...), or a command that reads JSON on stdin",
        )


def is_address(target: str) -> bool:
    """Whether it is posted to, and not called."""
    return target.partition("://")[0].lower() in SCHEMES and "://" in target


def _words(target: str) -> list[str]:
    try:
        return shlex.split(target)
    except ValueError as error:
        raise UsageError(f"--notify: {error}", "quote the command as in a shell") from None


def _post(address: str, document: dict[str, Any]) -> None:
    request = urllib.request.Request(
        address, json.dumps(document).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        answer.read(1024)


def _call(command: str, document: dict[str, Any]) -> None:
    subprocess.run(
        _words(command),
        input=json.dumps(document),
        text=True,
        stdout=2,  # stdout is the job's, or JSON's
        timeout=SECONDS,
        check=True,
    )


def _reason(error: Exception) -> str:
    """In words that hold no address: an address of a webhook is a secret."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the webhook answered {error.code}"
    if isinstance(error, subprocess.CalledProcessError):
        return f"the command ended with exit code {error.returncode}"
    if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
        return f"no answer within {SECONDS:.0f} s"
    return str(error.reason) if isinstance(error, urllib.error.URLError) else type(error).__name__
