"""Values of options that need no conversion: newer typers send each through pydantic, which takes longer to import than all else."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, get_args

TO_CONVERT = object()
NUMBERS = {int: re.compile(r"-?[0-9]{1,15}"), float: re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")}


def taken_as_they_are(parameters: list[Any]) -> list[Any]:
    """The same, whose values skip typer's conversion where they are absent, have their type already, or are plain numbers, text or paths without conditions.

    Where a typer has another shape, nothing changes.
    """
    for parameter in parameters:
        if hasattr(parameter, "type_descriptor") and "process_value" not in vars(parameter):
            _shorten(parameter)
    return parameters


def _shorten(parameter: Any) -> None:
    converted = parameter.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        found = _as_it_is(parameter, value)
        if found is TO_CONVERT:
            return converted(ctx, value)
        return parameter.callback(ctx, parameter, found) if parameter.callback else found

    parameter.process_value = process_value


def _as_it_is(parameter: Any, value: Any) -> Any:
    is_list = parameter.multiple or parameter.nargs == -1
    if value is None:
        return TO_CONVERT if parameter.required else () if is_list else None
    annotation, info = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    if info.parser is not None:
        return TO_CONVERT
    if not is_list:
        return _word(value, annotation, info)
    inner = get_args(annotation)
    if len(inner) != 1 or not isinstance(value, (list, tuple)):
        return TO_CONVERT
    found = [_word(each, inner[0], info) for each in value]
    return TO_CONVERT if TO_CONVERT in found else found


def _word(value: Any, wanted: Any, info: Any) -> Any:
    if type(value) is wanted and wanted in (str, bool, int, float):
        return value
    if type(value) is str and wanted in NUMBERS and NUMBERS[wanted].fullmatch(value):
        number = wanted(value)
        low, high = info.min, info.max
        is_within = (low is None or number >= low) and (high is None or number <= high)
        return number if is_within else TO_CONVERT
    if wanted is Path and isinstance(value, (str, Path)) and _takes_any_path(info):
        is_there_and_secret = Path(value).exists() and not os.access(value, os.R_OK)
        return TO_CONVERT if is_there_and_secret else Path(value)
    return TO_CONVERT


def _takes_any_path(info: Any) -> bool:
    asks = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type
    return info.file_okay and info.dir_okay and not asks
