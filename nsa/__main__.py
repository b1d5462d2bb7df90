"""The command `nsa`: one of the package's programs, by name."""

from __future__ import annotations

import importlib
import sys

# name: the module whose `main` it is, and what it does
COMMANDS = {
    "train": ("nsa.train", "train a model, alone or under torchrun (-m nsa.train)"),
    "tokenize": ("nsa.tokenize", "convert text to token ids by a tokenizer.json"),
    "generate": ("nsa.generate", "continue text by a checkpoint"),
    "export": ("nsa.export", "convert a checkpoint to transformers, or back"),
    "plots": ("nsa.plots", "draw the telemetry of a run"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command that the first argument names with the others; returns its exit code, 2 for an unknown one."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        lines = "\n".join(f"  {command:9} {does}" for command, (_, does) in COMMANDS.items())
        print(f"usage: nsa COMMAND ...\n\n{lines}\n\n`nsa COMMAND --help` explains each.")
        return 0
    if name not in COMMANDS:
        print(f"error: no command {name!r}\nhint: one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(COMMANDS[name][0])
    except ModuleNotFoundError as error:
        print(f"error: {error}\nhint: pip install 'nsa[train]'", file=sys.stderr)
        return 2
    return module.main(rest)


if __name__ == "__main__":
    sys.exit(main())
