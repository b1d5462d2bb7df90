"""Initial values that are drawn parameter by parameter are those of a model that is made at once."""

from __future__ import annotations

import pytest
import torch

from nsa.deferred import Deferred
from nsa.model import NSAModel
from nsa.options import load_train_config


@pytest.mark.parametrize(
    "overrides",
    [[], ["model.attention=dense"], ["attention.compression=mlp", "model.mlp=swiglu", "model.layers=3"]],
)
def test_values_and_what_is_drawn_afterwards_are_those_of_a_model_made_at_once(overrides):
    config = load_train_config("tiny", overrides)
    torch.manual_seed(3)
    whole, after = NSAModel(config.model, config.attention), torch.rand(3)
    deferred = Deferred(lambda: NSAModel(config.model, config.attention))
    assert all(parameter.is_meta for parameter in deferred.model.parameters())
    torch.manual_seed(3)
    deferred.initialise(torch.device("cpu"))
    assert torch.equal(torch.rand(3), after)
    expected = dict(whole.named_parameters())
    for name, parameter in deferred.model.named_parameters():
        assert torch.equal(parameter, expected.pop(name)), name
    assert not expected


def test_a_parameter_that_nothing_initialises_is_an_error_and_not_a_random_number():
    class Forgotten(torch.nn.Linear):
        def reset_parameters(self) -> None:
            torch.nn.init.normal_(self.weight)

    with pytest.raises(RuntimeError, match=r"nothing initialises \['bias'\]"):
        Deferred(lambda: Forgotten(2, 2))
