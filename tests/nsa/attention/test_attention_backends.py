"""The choice of a backend, what it reports, and what it costs in autograd nodes."""

from __future__ import annotations

import threading

import pytest
import torch
from attention_cases import SMALL, Case, count_autograd_nodes, random_inputs

from nsa.attention import backends_used, nsa_attention, resolve_backend
from nsa.attention.counter import BackendCounter
from nsa.config import AttentionConfig, ConfigError

CPU = torch.device("cpu")


def nodes(backend: str, n_tokens: int) -> int:
    inputs = random_inputs(Case(n_tokens=n_tokens))
    out = nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates, SMALL, backend=backend)
    return count_autograd_nodes(out)


def test_auto_is_the_torch_backend_on_a_cpu():
    assert resolve_backend("auto", CPU) == "torch"
    assert resolve_backend("sequential", CPU) == "sequential"


def test_a_backend_that_is_not_there_is_an_error_naming_those_that_are():
    with pytest.raises(ConfigError, match=r"'abacus' is not available on cpu.*torch, sequential, reference"):
        resolve_backend("abacus", CPU)


def test_the_backend_that_ran_is_counted():
    before = backends_used().calls.get("sequential", 0)
    nodes("sequential", 2)
    assert backends_used().calls["sequential"] == before + 1


def test_fallbacks_are_counted_with_their_reason_from_any_thread():
    counter = BackendCounter()
    threads = [
        threading.Thread(target=lambda: [counter.fell_back("triton", "torch", "fp64") for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.snapshot().fallbacks == {"triton -> torch: fp64": 2000}


def test_the_torch_backend_makes_as_many_nodes_for_any_number_of_tokens():
    assert nodes("torch", 20) == nodes("torch", 300)


def test_the_sequential_backend_makes_as_many_nodes_for_every_token():
    few, more, most = (nodes("sequential", n) for n in (10, 14, 18))
    assert most - more == more - few
    assert most > 18 * 80


@pytest.mark.slow  # importing the compiler takes 8 s
def test_the_torch_backend_compiles_into_one_graph():
    inputs = random_inputs(Case())
    compiled = torch.compile(nsa_attention, backend="eager", fullgraph=True)
    arguments = (inputs.q, inputs.k, inputs.v, inputs.gates, SMALL)
    torch.testing.assert_close(compiled(*arguments), nsa_attention(*arguments))


@pytest.mark.parametrize(
    "field", ["compress_block", "compress_stride", "select_block", "select_count", "window"]
)
def test_lengths_of_zero_are_refused(field):
    with pytest.raises(ValueError, match=field):
        AttentionConfig(**{field: 0})


def test_a_branch_named_twice_is_refused():
    with pytest.raises(ValueError, match="each once"):
        AttentionConfig(branches=("sliding", "sliding"))
