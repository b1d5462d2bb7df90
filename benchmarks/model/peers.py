"""Time others' whole NSA ops beside ours and dense attention, forward + backward, in one run: `python benchmarks/model/peers.py`.

A peer takes part where it can be imported: SFNSA (`flash_nsa`, of github.com/mdy666/Scalable-Flash-Native-Sparse-Attention, with a
flash-attn of its own for the window) and Liger-Kernel's of its pull request 1288 (`liger_kernel.transformers.native_sparse_attention`).
Ours, dense attention and Liger's get the inputs of `attention.py` (its "local" queries); SFNSA one K and V for all branches, which it compresses by
their mean within its time, and gates before the sigmoid. Liger's keeps every score of the compressed keys, so that long rows do not fit: said on stderr.

Rows of docs/lab/attention.csv on stdout, each as soon as its length is measured.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import itertools
import sys
from collections.abc import Callable, Iterator

import torch
import triton
from attention import interleaved_ms
from attention_runs import CONFIG, SHAPES, Inputs, Shape, dense_runs, make_inputs, nsa_runs
from torch import Tensor
from torch.nn.attention import SDPBackend

Run = Callable[[], object]


def sfnsa_run(inputs: Inputs, shape: Shape) -> Run:
    from flash_nsa import HFNSACore, NSAConfig

    config = NSAConfig(
        head_dim=shape.dim,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        kernel_size=CONFIG.compress_block,
        stride=CONFIG.compress_stride,
        block_size=CONFIG.select_block,
        top_n=CONFIG.select_count,
        num_init_blocks=CONFIG.initial_blocks,
        num_local_blocks=CONFIG.local_blocks,
        window_size=CONFIG.window,
    )
    op = HFNSACore(config).to("cuda", torch.bfloat16)
    leaves = [x.detach()[0].contiguous().requires_grad_() for x in (inputs.q, inputs.k[1], inputs.v[1])]
    leaves.append(inputs.gates.detach()[0].logit().requires_grad_())
    ends = torch.tensor([0, inputs.q.shape[1]], device="cuda", dtype=torch.int32)

    def both() -> None:
        torch.autograd.grad(op(*leaves, ends), leaves, inputs.dout[0])

    return both


def liger_run(inputs: Inputs, shape: Shape) -> Run:
    from liger_kernel.transformers.native_sparse_attention import native_sparse_attention_kernel as op

    def heads_first(x: Tensor) -> Tensor:
        return x.detach().transpose(1, 2).contiguous().requires_grad_()

    keys, values = inputs.k, inputs.v
    leaves = [
        heads_first(x)
        for x in (inputs.q, keys[1], values[1], inputs.gates, keys.compressed, values.compressed)
    ]
    dout = inputs.dout.transpose(1, 2).contiguous()

    def both() -> None:
        out = op(
            *leaves,
            num_kv_heads=shape.kv_heads,
            compress_block_size=CONFIG.compress_block,
            compress_stride=CONFIG.compress_stride,
            selection_block_size=CONFIG.select_block,
            num_selected_blocks=CONFIG.select_count,
            init_blocks=CONFIG.initial_blocks,
            local_blocks=CONFIG.local_blocks,
            window_size=CONFIG.window,
            scale=shape.dim**-0.5,
        )
        torch.autograd.grad(out, leaves, dout)

    return both


PEERS = {"SFNSA": sfnsa_run, "Liger-Kernel 1288": liger_run}


def whole_ops(shape: Shape, n_tokens: int) -> dict[str, Run]:
    """Ours, dense attention's, and the peers' that can be imported and fit."""
    inputs = make_inputs(shape, n_tokens, local=True)
    runs: dict[str, Run] = {
        "nsa": nsa_runs(inputs)["forward_backward"],
        "dense cuDNN": dense_runs(inputs, SDPBackend.CUDNN_ATTENTION)["forward_backward"],
        "dense flash": dense_runs(inputs, SDPBackend.FLASH_ATTENTION)["forward_backward"],
    }
    for name, made in PEERS.items():
        try:
            run = made(inputs, shape)
            run()
        except (ImportError, torch.OutOfMemoryError) as error:
            print(f"{name}, {n_tokens} tokens: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        else:
            runs[name] = run
        torch.cuda.empty_cache()
    return runs


def rows(preset: str, n_tokens: int, repeats: int) -> Iterator[list[object]]:
    spreads: dict[str, list[float]] = {}
    times = interleaved_ms(whole_ops(SHAPES[preset], n_tokens), repeats, spreads)
    where = (
        datetime.date.today(),
        torch.cuda.get_device_name().removeprefix("NVIDIA "),
        torch.__version__,
        triton.__version__,
    )
    for name, ms in times.items():
        figures = (f"{each:.3g}" for each in (ms, *spreads[name]))
        yield [*where, preset, n_tokens, name, "forward + backward", *figures]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[65536, 8192, 32768], help="tokens of a sequence"
    )
    parser.add_argument("--presets", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a GPU\nhint: run it on a machine with an H200 or A100")
    told = csv.writer(sys.stdout, lineterminator="\n")
    for n_tokens, preset in itertools.product(options.lengths, options.presets):
        told.writerows(rows(preset, n_tokens, options.repeats))
        sys.stdout.flush()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
