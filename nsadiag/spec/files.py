"""Finds and reads spec files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from nsadiag.errors import UsageError
from nsadiag.spec.matrix import Matrix

BUILT_IN = "nsa-quick"
HERE = Path(__file__).parents[1]
FOLDERS = (HERE / "configs", HERE.parent / "configs" / "matrices")  # in the package, and beside it


def find_spec(name: str) -> Path:
    """A path as given, or a name in configs/matrices, in the package or beside it. Raises UsageError."""
    candidates = [Path(name), *(folder / f"{name}.yaml" for folder in FOLDERS)]
    for path in candidates:
        if path.is_file():
            return path
    known = sorted({p.stem for folder in FOLDERS for p in folder.glob("*.yaml")})
    raise UsageError(
        f"no such matrix: {name}", f"give the path of a YAML file, or one of: {', '.join(known)}"
    )


def _hint() -> str:
    """One that works, where it lies on this machine."""
    return f"one that works: {find_spec(BUILT_IN)}"


def load_matrix(path: Path) -> Matrix:
    """Reads and checks a spec. Raises UsageError naming the key that is off."""
    document = _extended(path, _document(path))
    try:
        return Matrix.model_validate(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None
    except ValidationError as error:
        raise UsageError(f"{path}: {_problem(error)}", _hint()) from None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {_yaml_problem(error)}", _hint()) from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no mapping", _hint())
    return document


def _extended(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """With what `extends` names beneath it: keys, axes and variables of this file stand in for those of that one."""
    name = document.pop("extends", None)
    if name is None:
        return document
    beside = path.parent / f"{name}.yaml"
    lower = _document(beside if beside.is_file() else find_spec(str(name)))
    if "extends" in lower:
        raise UsageError(f"{path}: {name} extends another spec itself", "extend the one that it extends")
    inner = {key: value for key in ("axes", "env") if (value := _joined(lower.get(key), document.get(key)))}
    return {**lower, **document, **inner}


def _joined(lower: Any, upper: Any) -> Any:
    """A mapping over another; anything else is for the checks to refuse."""
    if isinstance(lower, dict) and isinstance(upper, dict):
        return {**lower, **upper}
    return lower if upper is None else upper


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _problem(error: ValidationError) -> str:
    """The most precise of pydantic's complaints, as `axes.layers.values: what is wrong`."""
    # Of the forms that a value may have, the one that went deepest is the one that was meant.
    first = max(error.errors(), key=lambda e: len(e["loc"]))
    place = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    problem = first["msg"].removeprefix("Value error, ")
    return f"{place}: {problem}" if place else problem
