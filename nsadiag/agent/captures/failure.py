"""Reasons why evidence could not be had."""

from __future__ import annotations


class CaptureError(Exception):
    """The evidence could not be had; the message says what stood in the way."""


class Refused(CaptureError):
    """It may not be had here, now or later: a permission or a program is missing."""


class NotApplicable(CaptureError):
    """There is nothing of the kind to be had here, such as a GPU's state on a machine without one: no gap."""
