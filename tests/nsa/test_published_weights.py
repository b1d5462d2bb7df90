"""The weights in artifacts/ open, and are those of a trained model."""

from __future__ import annotations

import bisect
from pathlib import Path

import pytest
import torch

from nsa.generate import main
from nsa.restore import load_model

WEIGHTS = Path(__file__).parents[2] / "artifacts/nsa-bytes-19m"


def test_the_published_weights_know_the_library_that_they_were_trained_on(capsys):
    pytest.importorskip("transformers")
    model, _ = load_model(WEIGHTS)
    tokens = torch.tensor([list(Path(bisect.__file__).read_bytes()[:600])])
    with torch.inference_mode():
        assert model(tokens[:, :-1], tokens[:, 1:]) < 1.2  # nats a byte; 5.5 untrained
    assert main([str(WEIGHTS), "from __future__ import annot", "--tokens", "5", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip() == "ation"
