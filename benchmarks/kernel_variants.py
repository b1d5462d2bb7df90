"""Time tiles of the kernels that no GPU has run yet beside those of `tiles.py`, in turns; then the whole call with the best.

usage: kernel_variants.py [--shapes paper small] [--lengths 65536 32768] [--turns 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from attention_runs import CONFIG, LENGTHS, SELECTION, SHAPES, Inputs, Shape, make_inputs, nsa_runs

from nsa.attention.kernels import band, choose, gates, gather
from nsa.attention.kernels.tiles import Launch, Tile, band_dq_tile, band_forward_tile, selected_launch

Run = Callable[[], object]
FORWARD = [
    Tile(64, 64, 4, 3, 1), Tile(64, 64, 4, 2, 1, 168), Tile(64, 64, 4, 2, 1), Tile(64, 32, 4, 3, 1), Tile(64, 32, 4, 4, 1, 168),
    Tile(64, 32, 4, 3, 1, 128), Tile(128, 64, 8, 3, 1),
]  # fmt: skip
DQ = [
    Tile(64, 32, 4, 3, 2, 168),
    Tile(64, 32, 4, 3, 3),
    Tile(64, 32, 4, 3, 0, 168),
    Tile(64, 32, 4, 4, 2, 168),
]
SELECTED = [Launch(4, 3, True), Launch(4, 2, True), Launch(4, 2, True, 168), Launch(4, 2, False, 168)]


def in_turns(runs: dict[str, Run], turns: int) -> dict[str, float]:
    """The median ms of each run, by events around calls that took turns; one that fails is left out, and said."""
    times: dict[str, list[float]] = {}
    for name, run in runs.items():
        began = time.perf_counter()
        try:
            run()
            torch.cuda.synchronize()
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
            continue
        times[name] = []
        print(f"  ({name} compiled in {time.perf_counter() - began:.1f} s)", flush=True)
    for turn in range(turns):
        order = list(times) if turn % 2 else list(reversed(times))
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            runs[name]()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(each) for name, each in times.items()}


def report(title: str, now: str, times: dict[str, float]) -> str:
    """Print the times, and give the name of the fastest, which is that of now unless another is 1 % faster."""
    for name, ms in times.items():
        print(f"{title:34} {name:34} {ms:8.3f} {ms / times[now]:6.3f}", flush=True)
    best = min(times, key=times.__getitem__)
    return best if times[best] < 0.99 * times[now] else now


def differences(a: object, b: object) -> float:
    """The largest difference of two results, tensor by tensor."""
    flat = [[x for x in _flat(each) if x is not None] for each in (a, b)]
    return max(float((x.float() - y.float()).abs().nan_to_num().max()) for x, y in zip(*flat, strict=True))


def _flat(x: object) -> list:
    return [x] if x is None or isinstance(x, torch.Tensor) else [leaf for part in x for leaf in _flat(part)]


def best_tiles(inputs: Inputs, name: str, turns: int) -> tuple[Tile, Tile, Launch]:
    """The fastest tiles of bands' forward and dq, and launch of the selected forward."""
    q, gate, dout = inputs.q.detach(), inputs.gates.detach(), inputs.dout
    k, v = ([x.detach() for x in each] for each in (inputs.k, inputs.v))
    ends = (q, (k[0], None, k[2]), (v[0], None, v[2]))
    dim = q.shape[3]
    (out, _, near), (lse, _, near_lse) = band.bands_forward(*ends, LENGTHS)
    stats = gates.gate_backward(dout, [out, None, near], [lse, None, near_lse], gate)[1]

    def pick(title: str, now: object, others: list, run: Callable[[object], object]) -> object:
        runs = {str(tuple(each)): (lambda each=each: run(each)) for each in [now, *others]}
        by_name = {str(tuple(each)): each for each in [now, *others]}
        times = in_turns(runs, turns)
        same = run(now)
        for key in times:
            apart = differences(same, run(by_name[key]))
            repeated = differences(run(by_name[key]), run(by_name[key]))
            print(f"  {title} {key}: differs by {apart:.2e} from now, {repeated:.1e} from itself", flush=True)
        return by_name[report(f"{name} {title}", str(tuple(now)), times)]

    now = band_forward_tile(dim, q.dtype, True)
    forward = pick("bands forward", now, FORWARD, lambda tile: band.bands_forward(*ends, LENGTHS, tile=tile))
    now = band_dq_tile(dim, q.dtype, True)
    dq = pick("bands dq", now, DQ, lambda tile: band.bands_dq(*ends, dout, stats, LENGTHS, tile=tile))
    blocks = choose.select(q, k[0], lse, SELECTION, 0)

    def selected(launch: Launch) -> object:
        gather.selected_launch = lambda *_: launch
        others = (out, None, near)
        return gather.selected_forward(q, k[1], v[1], blocks, CONFIG.select_block, 0, None, others, gate)[:3]

    now = selected_launch(dim, True)
    launch = pick("selected forward", now, SELECTED, selected)
    gather.selected_launch = selected_launch
    return forward, dq, launch


def whole(inputs: Inputs, name: str, best: tuple[Tile, Tile, Launch], turns: int) -> None:
    """Forward, and forward with backward, by the tiles of now and by the best."""
    forward, dq, launch = best

    def with_best(run: Run) -> Run:
        def call() -> None:
            band.band_forward_tile = lambda *_: forward
            band.band_dq_tile = lambda *_: dq
            gather.selected_launch = lambda *_: launch
            try:
                run()
            finally:
                band.band_forward_tile, band.band_dq_tile = band_forward_tile, band_dq_tile
                gather.selected_launch = selected_launch

        return call

    for what, run in nsa_runs(inputs).items():
        times = in_turns({"now": run, "best": with_best(run)}, turns)
        report(f"{name} {what}", "now", times)


def measure(name: str, shape: Shape, n_tokens: int, turns: int) -> None:
    inputs = make_inputs(shape, n_tokens, local=True)
    best = best_tiles(inputs, f"{name} {n_tokens}", turns)
    print(f"{name} {n_tokens}: best {[tuple(each) for each in best]}", flush=True)
    whole(inputs, f"{name} {n_tokens}", best, turns)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[65536, 32768])
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for n_tokens in options.lengths:
        for name in options.shapes:
            try:
                measure(name, SHAPES[name], n_tokens, options.turns)
            except Exception as error:  # the other shapes are worth their time
                print(f"{name} {n_tokens}: {type(error).__name__}: {error}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
