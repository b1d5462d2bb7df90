"""Imports of the checkout, read off its source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Arrow:
    """One import: `module` needs `target`."""

    module: str
    target: str
    line: int
    in_function: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def arrows(path: Path, root: Path) -> Iterator[Arrow]:
    """Every import of the file: nested, conditional, relative, under TYPE_CHECKING, by import_module."""
    module = module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node, in_function in walk(ast.parse(path.read_text(encoding="utf-8"))):
        for target in targets(node, package, root):
            yield Arrow(module, target, node.lineno, in_function)  # type: ignore[attr-defined]


def walk(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, in_function
        inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk(child, inside)


def targets(node: ast.AST, package: str, root: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*up, *([node.module] if node.module else [])])
        return [submodule(base, alias.name, root) for alias in node.names]
    if isinstance(node, ast.Call) and node.args:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        argument = node.args[0]
        if name in ("import_module", "__import__") and isinstance(argument, ast.Constant):
            return [str(argument.value)]
    return []


def submodule(base: str, name: str, root: Path) -> str:
    """`from a import b` needs the module a.b if there is one, else a."""
    path = root.joinpath(*base.split("."), name)
    return f"{base}.{name}" if path.with_suffix(".py").exists() or path.is_dir() else base
