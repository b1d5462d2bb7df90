"""`--notify`: webhooks and commands that hear of a suspected hang, of its withdrawal, and of the verdict."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
import shutil
import threading
import urllib.error
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nsadiag.deadlines import programs
from nsadiag.deadlines.deadline import Deadline
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir
from nsadiag.evidence.secrets.published import mask_likely
from nsadiag.printing import note
from nsadiag.reports.cleaners.chat import chat

if TYPE_CHECKING:
    from nsadiag.evidence.records import Verdict

SECONDS = 10.0  # for each webhook or command, side by side, from the look-up of its name to its answer
MARGIN_S = 1.0  # for a command to be ended
NO_ANSWER = f"no answer within {SECONDS:.0f} s"
SCHEMES = ("http", "https")


class _Failed(Exception):
    """A message that did not arrive, and why."""


class Notifier:
    """Sends to each target, all at once; one that fails costs a line on stderr, and never the job or the verdict."""

    def __init__(self, *, targets: tuple[str, ...], run: RunDir, name: str) -> None:
        self._targets, self._run, self._name = targets, run, name
        self._earlier: list[_Sending] = []

    def tell(self, event: str, text: str) -> None:
        """Returns at once, as the job is being watched. `event` is suspected or withdrawn."""
        self._earlier = [sending for sending in self._earlier if sending.is_alive()]
        for sending in self._sendings(event, text):
            sending.start_reporting()
            self._earlier.append(sending)

    def wait(self) -> None:
        """Returns when what was told has arrived everywhere, or at the limit."""
        deadline = Deadline(SECONDS + MARGIN_S)
        for sending in self._earlier:
            with contextlib.suppress(TimeoutError):
                sending.join(deadline.left())

    def verdict(self, verdict: Verdict) -> None:
        """The verdict's first lines; returns when they have arrived everywhere, or at the limit."""
        where = verdict.where
        at = f" ({where.file}:{where.line})" if where and where.file and where.line else ""
        fix = f" {verdict.fix}" if verdict.fix else ""
        words = f"{verdict.outcome.upper()} {verdict.summary}{at}{fix}"
        sendings = self._sendings("verdict", words, verdict)
        for sending in sendings:
            sending.start()
        deadline = Deadline(SECONDS + MARGIN_S)
        for sending in (*self._earlier, *sendings):
            with contextlib.suppress(TimeoutError):
                sending.join(deadline.left())
        for sending in sendings:
            sending.report()

    def _sendings(self, event: str, text: str, verdict: Verdict | None = None) -> list[_Sending]:
        # A chat is read by more people than the run directory.
        words = mask_likely(f"nsadiag: {self._name} on {platform.node()}: {text}")
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "event": event,
            "text": words,
            "name": self._name,
            "host": platform.node(),
            "directory": str(self._run.path.resolve()),
            "verdict": verdict.to_json() if verdict else None,
        }
        several = len(self._targets) > 1
        return [
            _Sending(target, document, f" (target {number} of {len(self._targets)})" if several else "")
            for number, target in enumerate(self._targets, start=1)
        ]


class _Sending(threading.Thread):
    """One message to one target."""

    def __init__(self, target: str, document: dict[str, Any], which: str) -> None:
        super().__init__(name="nsadiag-notify", daemon=True)
        self._target, self._document, self._which = target, document, which
        self._failure: str | None = NO_ANSWER
        self._reports = False

    def start_reporting(self) -> None:
        """Says by itself how it failed: nobody waits for it."""
        self._reports = True
        self.start()

    def run(self) -> None:
        try:
            if is_address(self._target):
                # The form that Slack, Mattermost and Rocket.Chat take.
                body = json.dumps({"text": chat(self._document["text"])}).encode()
                from nsadiag.deadlines.http import post  # a tenth of what a job waits for before it starts

                post(self._target, body, "application/json", SECONDS)
            else:
                _call(self._target, self._document)
            self._failure = None
        except Exception as error:
            self._failure = _reason(error)
        if self._reports:
            self.report()

    def report(self) -> None:
        if self._failure:
            note(f"nsadiag: --notify failed{self._which}: {self._failure}")


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


def _call(command: str, document: dict[str, Any]) -> None:
    # Our stdout is the job's, or JSON's.
    done = programs.run(_words(command), text=json.dumps(document), stdout=2, seconds=SECONDS)
    if done.returncode:
        raise _Failed(f"the command ended with exit code {done.returncode}")


def _reason(error: Exception) -> str:
    """In words that hold no address: an address of a webhook is a secret."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the webhook answered {error.code}"
    if isinstance(error, _Failed):
        return str(error)
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    return str(error.reason) if isinstance(error, urllib.error.URLError) else type(error).__name__
