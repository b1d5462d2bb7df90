"""The user's own modules put into the script that imports them, so that it stands alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsadiag.experiments.rewriting.printing import DEFINES
from nsadiag.experiments.rewriting.program import Program, parse


class CannotInline(Exception):
    """The modules cannot become one file without a change of meaning; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The line to keep as it is written."""

    file: Path
    line: int


@dataclass(kw_only=True)
class _Module:
    path: Path
    name: str
    program: Program
    imports: list[ast.stmt]  # of modules that stay modules
    names: set[str]  # what it binds at its top


def inlined(
    script: Path, roots: Sequence[Path], *, wanted: Wanted | None = None
) -> tuple[Program, list[Path]]:
    """The script with its local modules in it, and which they were. Raises CannotInline, SyntaxError.

    `roots` are the folders that Python would look into for modules of the user's own.
    """
    joined = _Joined(script, roots, wanted)
    joined.add(script, "__main__")
    return joined.program(), [m.path for m in joined.modules[:-1]]


class _Joined:
    """Modules in the order in which Python would run them; the script comes last."""

    def __init__(self, script: Path, roots: Sequence[Path], wanted: Wanted | None) -> None:
        self.roots, self.wanted = [r.resolve() for r in roots], wanted
        self.modules: list[_Module] = []
        self._begun: set[Path] = set()
        self._numbers = 0

    def add(self, path: Path, name: str) -> None:
        """Reads a module behind those that it imports."""
        path = path.resolve()
        if path in self._begun:
            return
        self._begun.add(path)
        line = self.wanted.line if self.wanted and self.wanted.file.resolve() == path else None
        program = parse(path.read_text(encoding="utf-8"), wanted_line=line, first_number=self._numbers)
        self._numbers = 1 + max((getattr(n, "number", 0) for n in ast.walk(program.tree)), default=0)
        module = _Module(path=path, name=name, program=program, imports=[], names=set())
        _Links(self, module).visit(program.tree)
        module.names = set(_bound(program.tree.body))
        if name != "__main__":
            program.tree.body = [s for s in program.tree.body if not _is_main_guard(s)]
        self.modules.append(module)

    def program(self) -> Program:
        """All bodies one after the other, imports first."""
        self._check_names()
        imports = {ast.unparse(s): s for m in self.modules for s in m.imports}
        future = [s for s in imports.values() if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        rest = [s for s in imports.values() if s not in future]
        body = [s for m in self.modules for s in m.program.tree.body]
        kept = {number for m in self.modules for number in m.program.kept}
        return Program(tree=ast.Module(body=[*future, *rest, *body], type_ignores=[]), kept=kept)

    def _check_names(self) -> None:
        """Two modules that bind one name differently cannot share a file as they are."""
        owners: dict[str, tuple[str, str]] = {}
        for module in self.modules:
            for node in module.imports:
                for alias in node.names:  # type: ignore[attr-defined]
                    self._claim(
                        owners,
                        alias.asname or alias.name.split(".")[0],
                        ast.unparse(_only(node, alias)),
                        module,
                    )
            for name in module.names:
                self._claim(owners, name, f"{module.name}.{name}", module)

    def _claim(self, owners: dict[str, tuple[str, str]], name: str, what: str, module: _Module) -> None:
        known, owner = owners.setdefault(name, (what, module.name))
        # `import torch` and `import torch.nn` both bind torch.
        both_imports = (
            known.startswith("import ") and what.startswith("import ") and " as " not in known + what
        )
        if known != what and not both_imports and name not in ("__all__",):
            raise CannotInline(f"{owner} and {module.name} both have a {name}")

    def local(self, name: str) -> Path | None:
        """The file of a module of the user's own, None for any other."""
        for root in self.roots:
            for path in (
                root.joinpath(*name.split(".")).with_suffix(".py"),
                root.joinpath(*name.split("."), "__init__.py"),
            ):
                if path.is_file() and "site-packages" not in path.parts:
                    return path
        return None


def _only(node: ast.stmt, alias: ast.alias) -> ast.stmt:
    if isinstance(node, ast.ImportFrom):
        return ast.ImportFrom(module=node.module, names=[alias], level=0)
    return ast.Import(names=[alias])


class _Links(ast.NodeTransformer):
    """Takes a module's imports away: those of local modules are followed, those of others collected."""

    def __init__(self, joined: _Joined, module: _Module) -> None:
        self.joined, self.module = joined, module
        self.aliases: dict[str, str] = {}  # name here: local module that it stands for
        self._depth = 0

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        if self.aliases:
            _Unqualified(self.aliases, self.joined).visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        node.body = node.body or [ast.Pass()]
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        others = []
        for alias in node.names:
            if self.joined.local(alias.name) is None:
                others.append(alias)
                continue
            self._follow(alias.name)
            if alias.asname is None and "." in alias.name:
                raise CannotInline(f"import {alias.name} names a package of your own")
            self.aliases[alias.asname or alias.name] = alias.name
        return self._collected(ast.Import(names=others), node) if others else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        base = self._absolute(node)
        if self.joined.local(base) is None:
            return self._collected(node, node)
        others = []
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if self.joined.local(inner) is not None:
                self._follow(inner)
                self.aliases[alias.asname or alias.name] = inner
                continue
            self._follow(base)
            if alias.name != "*" and alias.asname not in (None, alias.name):
                others.append((alias.asname, alias.name))
        same = [ast.Assign(targets=[ast.Name(id=str(new), ctx=ast.Store())], value=ast.Name(id=old, ctx=ast.Load())) for new, old in others]  # fmt: skip
        for statement in same:
            for part in ast.walk(statement):
                part.number = -1  # type: ignore[attr-defined]
            ast.copy_location(statement, node)
        return same or None  # type: ignore[return-value]

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        root = next((r for r in self.joined.roots if self.module.path.is_relative_to(r)), None)
        if root is None:
            raise CannotInline(f"{self.module.path.name} imports relatively")
        folder = self.module.path.parents[node.level - 1].relative_to(root)
        return ".".join([*folder.parts, *([node.module] if node.module else [])])

    def _follow(self, name: str) -> None:
        path = self.joined.local(name)
        assert path is not None
        package = name.rpartition(".")[0]
        if package and self.joined.local(package):
            self._follow(package)
        self.joined.add(path, name)

    def _collected(self, statement: ast.stmt, node: ast.stmt) -> ast.AST | None:
        """At the top of a module it moves to the top of the file; in a function it stays: it may be costly, or absent."""
        if not hasattr(statement, "number"):
            statement.number = node.number  # type: ignore[attr-defined]
        if self._depth:
            return ast.copy_location(statement, node)
        self.module.imports.append(ast.copy_location(statement, node))
        return None


class _Unqualified(ast.NodeTransformer):
    """`module.name` becomes `name`, now that both are in one file."""

    def __init__(self, aliases: dict[str, str], joined: _Joined) -> None:
        self.aliases, self.joined = aliases, joined

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.aliases:
            fresh = ast.copy_location(ast.Name(id=node.attr, ctx=node.ctx), node)
            fresh.number = node.number  # type: ignore[attr-defined]
            return fresh
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.aliases and isinstance(node.ctx, ast.Load):
            raise CannotInline(f"the module {node.id} is used as a value")
        return node


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind in the scope that they stand in."""
    for node in body:
        if isinstance(node, DEFINES):
            yield node.name
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in {
        n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)
    }
