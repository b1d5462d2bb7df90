"""Where the files of the distribution lie: two directories up in a checkout, beside this file in an sdist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


def _source(root: str) -> Path:
    here = Path(root)
    return here if (here / "nsa").is_dir() else here.parents[1]


class Files(BuildHookInterface):
    """The package with its configurations and licence; an sdist keeps them at the paths of the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        configs = "nsa/configs" if self.target_name == "wheel" else "configs/models"
        licence = "nsa/LICENSE" if self.target_name == "wheel" else "LICENSE"
        source = _source(self.root)
        build_data["force_include"] |= {
            str(source / "nsa"): "nsa",
            str(source / "configs/models"): configs,
            str(source / "LICENSE"): licence,
        }


class Readme(MetadataHookInterface):
    """The package's README as the distribution's description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (_source(self.root) / "nsa/README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def get_build_hook() -> type[BuildHookInterface]:
    return Files


def get_metadata_hook() -> type[MetadataHookInterface]:
    return Readme
