"""The base of all that a spec holds: immutable, and a key it does not know is refused with the nearest one."""

from __future__ import annotations

import difflib
import shlex
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from nsadiag.errors import UsageError


class Strict(BaseModel):
    """A part of a spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise UsageError(
                    f"unknown key {key!r} in {cls.__name__.lower()}", nearest(key, list(cls.model_fields))
                )
        return values


class Words(Strict):
    """A part with command lines in it."""

    @field_validator("args", "command", check_fields=False)
    @classmethod
    def _quotes_are_closed(cls, text: str | None) -> str | None:
        shlex.split(text or "")
        return text


def nearest(word: object, known: list[str]) -> str:
    """A hint that names the known word most like this one, or all of them."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def label(value: object) -> str:
    """As YAML spells it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
