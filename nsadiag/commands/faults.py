"""The scripts of repro/ as `nsadiag list --faults` and `nsadiag demo` know them: read, never imported."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nsadiag.analysis.rules.catalogue import classes
from nsadiag.errors import UsageError
from nsadiag.source.literals import docstring_of

# In C where PyYAML has it: 150 promises in 5 ms instead of 40.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One script, and what its docstring promises."""

    script: Path
    what: str
    classes: tuple[str, ...]  # any of these is right; the first is the one to expect
    mechanism: str | None  # the rule that concludes it, where its class has many
    outcome: str
    guilty_ranks: tuple[int, ...]
    launch: str
    options: tuple[str, ...]  # of `nsadiag run`
    needs: str | None  # "gpu"

    @property
    def name(self) -> str:
        return self.script.stem

    def to_json(self) -> dict[str, Any]:
        """Without the path: it is another on every machine."""
        return {
            "what": self.what,
            "class": list(self.classes),
            "mechanism": self.mechanism,
            "outcome": self.outcome,
            "guilty_ranks": list(self.guilty_ranks),
            "launch": self.launch,
            "options": list(self.options),
            "needs": self.needs,
        }


def folder() -> Path:
    """repro/ of the installed package, else of the repository."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "repro"
    return installed if installed.is_dir() else package.parent / "repro"


def scripts() -> list[Path]:
    """All of them, by name; those of Ray's are attached to, and not run."""
    found = (path for path in folder().glob("*/*.py") if path.parent.name != "ray")
    return sorted(found, key=lambda path: path.name)


def faults() -> list[Fault]:
    """All of them, those of one class together, in causal order."""
    order = list(classes())
    found = [read_fault(script) for script in scripts()]
    return sorted(found, key=lambda fault: (order.index(fault.classes[0]), fault.name))


def read_fault(script: Path) -> Fault:
    """The promises in the script's docstring. Raises KeyError where one lacks a key."""
    docstring = docstring_of(script.read_text(encoding="utf-8"))
    promise = LOADER(docstring.partition("\nPromise:\n")[2]).get_single_data()
    named = [class_and_mechanism(text) for text in _listed(promise["class"])]
    return Fault(
        script=script,
        what=headline(docstring),
        classes=tuple(cls for cls, _ in named),
        mechanism=named[0][1],
        outcome=_listed(promise["outcome"])[0].partition(" (")[0],  # `hung (proven)`
        guilty_ranks=tuple(promise["guilty_ranks"]),
        launch=promise["launch"],
        options=tuple(promise.get("options", ())),
        needs=promise.get("needs"),
    )


def class_and_mechanism(text: str) -> tuple[str, str | None]:
    """`silently_wrong (shared_draws)`: a class, and the rule that concludes it where the script says so."""
    cls, _, mechanism = text.removesuffix(")").partition(" (")
    return cls, mechanism or None


def find_fault(wanted: str) -> Fault:
    """By the script's name, or the first of a class or mechanism. Raises UsageError that names the nearest ones."""
    known = faults()
    name = Path(wanted).name.removesuffix(".py")
    by_name = [fault for fault in known if fault.name == name]
    of_class = [fault for fault in known if name in fault.classes]
    # The class a script shows first, and what runs on any machine, come before the others.
    of_class.sort(key=lambda fault: (fault.needs is not None, fault.classes.index(name)))
    of_mechanism = [fault for fault in known if fault.mechanism == name]
    for fault in (*by_name, *of_class, *of_mechanism):
        return fault
    if name in classes():
        raise UsageError(f"no script shows {name}", "nsadiag list --faults names those there are")
    names = sorted({n for f in known for n in (f.name, *f.classes, f.mechanism) if n})
    near = difflib.get_close_matches(name, names, n=3) or [n for n in names if name in n][:3]
    hint = f"did you mean {', '.join(near)}?" if near else "nsadiag list --faults names them all"
    raise UsageError(f"no such fault: {wanted}", hint)


def launcher(fault: Fault) -> list[str]:
    """The words of its launch line that stand before the script, run by this very Python."""
    words = shlex.split(fault.launch)
    return ["-m", "torch.distributed.run", *words[1:]] if words[0] == "torchrun" else words[1:]


def headline(docstring: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((docstring or "").split("\n\n")[0].split())


def _listed(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
