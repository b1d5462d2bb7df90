"""Triton's interpreter in a third of the time, with the same results: what it repeats, or computes for nobody, is left out.

Written for Triton 3.9. Of another version whatever has another name is left as it is, and takes its time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    """Replace what is slow, for the rest of the process."""
    _skip_unread_overflow_checks()
    for name, quick in (("_patch_lang", _patching_once), ("_get_np_dtype", _dtypes_by_name)):
        if hasattr(interpreter, name):
            setattr(interpreter, name, quick(getattr(interpreter, name)))
    if hasattr(interpreter, "ReduceOps") and hasattr(tl.standard, "_xor_combine"):
        interpreter.ReduceOps.apply_impl = _xor_at_once(interpreter.ReduceOps.apply_impl)


def _skip_unread_overflow_checks() -> None:
    """A third of the time: every sum of integers once more in 64 bits, for an assertion that only debug mode makes."""
    options = getattr(interpreter.interpreter_builder, "options", None)
    if getattr(options, "sanitize_overflow", False) and not options.debug:
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


def _patching_once(patch_lang: Any) -> Any:
    """A sixth: every call of a device function patches the language, which the launch has patched already."""
    patched: set[tuple[bool, bool]] = set()

    def quick(function: Any) -> Any:
        seen = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        languages = (tl in seen, tl.core in seen)
        if languages in patched:
            return None  # of a device function nobody takes the result
        patched.add(languages)
        scope = patch_lang(function)
        restore = scope.restore

        def restore_and_forget() -> None:
            patched.clear()
            restore()

        scope.restore = restore_and_forget
        return scope

    return quick


def _dtypes_by_name(get_np_dtype: Any) -> Any:
    """A tenth: a table of all types is made for each question."""
    known: dict[str, np.dtype] = {}

    def quick(dtype: Any) -> np.dtype:
        scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(scalar, tl.pointer_type):
            return get_np_dtype(dtype)
        if scalar.name not in known:
            known[scalar.name] = get_np_dtype(dtype)
        return known[scalar.name]

    return quick


def _xor_at_once(apply_impl: Any) -> Any:
    """A sixth: `tl.sort` reduces by xor, which is done number by number."""

    def quick(self: Any, values: Any) -> Any:
        if self.combine_fn is not tl.standard._xor_combine or self.axis is None:
            return apply_impl(self, values)
        data = np.bitwise_xor.reduce(values[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(data, values[0].dtype)

    return quick
