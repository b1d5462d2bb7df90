#!/usr/bin/env python3
"""Does it learn, and find needles? `python benchmarks/model/learning.py OUT [--minutes 9]`, on one GPU or two.

Trains a byte model of 8 layers (13 million parameters, with NSA 19) twice, with NSA and with dense attention, on the same documents in the same order:
pieces of Python's own library with needles (`#~ KEYVALUE`) at random places, all of which are asked for at the end. Documents are
short first, so that all of their blocks are selected, and then 8,192 bytes long (`--stages LENGTH:SHARE ...`; every step has as many
tokens). The minutes are those of both runs together, on as many tokens each; on two GPUs both run at once. Then both are asked for one
needle in documents of files that no step saw. OUT gets the data, both runs' telemetry and checkpoints, learning.json, loss.svg, and the NSA
model as transformers writes it, in bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import string
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch

from nsa.layers.sparse import NSAAttention
from nsa.model import NSAModel, loss_of
from nsa.plots import losses, svg
from nsa.restore import load_model

LENGTH = 8192  # bytes of an evaluated document, its end included
TOKENS = 4 * LENGTH  # of a step
NEEDLES, DIGITS = 8, 6
TRAINED, APART = 16, 256  # needles of a training document: so many, or one for so many bytes if that is more
DEPTHS, ASKED = 10, 50  # of the evaluation: documents at each depth of the needle
FEW = 5  # of them where every block is selected, by the slow plain PyTorch backend
EVALUATIONS, POINTS = 20, 200  # of a curve
ATTENTIONS = ("nsa", "dense")
MODEL = [
    "model.layers=8", "model.dim=384", "model.heads=6", "model.kv_groups=2", "model.head_dim=64",
    "data.source=text", "data.documents=joined", "train.precision=bf16", "optimizer.lr=1.5e-3",
    "optimizer.warmup_steps=100", "optimizer.schedule=wsd", "optimizer.weight_decay=0.1", "train.cuda_graph=true",
    "train.log_every=20",
]  # fmt: skip

Curves = dict[str, dict[str, list[tuple[float, float]]]]  # title, attention, points


class Stage(NamedTuple):
    """Training on documents of one length, until a share of all steps is done."""

    length: int
    until: float


class Plan(NamedTuple):
    """What both runs have in common."""

    out: Path
    stages: list[Stage]
    selection_loss: float  # of NSA; 0: as the paper trains
    unseen: bytes


def main() -> None:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    seen, unseen = library()
    plan = Plan(given.out, stages_of(given.stages), given.selection_loss, unseen.encode())
    for stage in plan.stages:
        needles = given.needles or max(TRAINED, stage.length // APART)
        count = given.megabytes * 10**6 // stage.length
        write_documents(documents(plan, stage), seen, count, stage.length, needles)
    steps = given.steps or steps_for(plan, given.minutes * 60)
    gpus = max(1, min(len(given.only), torch.cuda.device_count()))
    with ThreadPoolExecutor(gpus) as at_once:
        runs = [at_once.submit(learned, plan, name, steps, i % gpus) for i, name in enumerate(given.only)]
        figures = {name: run.result() for name, run in zip(given.only, runs, strict=True)}
    curves = curves_of(plan, given.only)
    result = {
        "machine": machine(),
        "figures": {
            "steps": steps,
            "stages": plan.stages,
            "selection_loss": plan.selection_loss,
            "text_bytes": len(seen.encode()),
            **figures,
        },
        "curves": curves,
    }
    (given.out / "learning.json").write_text(json.dumps(result) + "\n")
    (given.out / "loss.svg").write_text(svg(curves), encoding="utf-8")
    if "nsa" in figures:
        export(given.out)
    print(json.dumps(result) if given.json else table(figures, steps))


def arguments() -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9, help="of training, both runs together")
    parser.add_argument("--steps", type=int, help="instead of minutes")
    parser.add_argument(
        "--stages", nargs="+", default=["1024:0.65", f"{LENGTH}:1"], help="LENGTH:UNTIL, a share of all steps"
    )
    parser.add_argument(
        "--needles", type=int, default=0, help="of a training document; 0: more the longer it is"
    )
    parser.add_argument("--selection-loss", type=float, default=1.0, help="its weight in training NSA")
    parser.add_argument("--megabytes", type=int, default=330, help="of training documents of each length")
    parser.add_argument("--only", choices=ATTENTIONS, nargs="+", default=ATTENTIONS, help="these runs")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def stages_of(texts: list[str]) -> list[Stage]:
    """The stages that the command line names, the last of which ends with the last step."""
    stages = [Stage(int(length), float(until)) for length, until in (text.split(":") for text in texts)]
    return [*stages[:-1], stages[-1]._replace(until=1.0)]


def machine() -> dict[str, str]:
    """The versions and the GPU that the figures are of."""
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "triton": version("triton"),
        "python": sys.version.split()[0],
        "date": date.today().isoformat(),
    }


def library() -> tuple[str, str]:
    """The sources of Python's library: those to train on, and every twentieth file, which is not."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(f for f in root.rglob("*.py") if "-packages" not in str(f) and f.stat().st_size > 2000)
    texts = [file.read_text(encoding="utf-8", errors="ignore").replace("\0", "") for file in files]
    parts = ("\n".join(t for i, t in enumerate(texts) if (i % 20 == 19) == held) for held in (False, True))
    return tuple(parts)


def documents(plan: Plan, stage: Stage) -> Path:
    """The file of a stage's documents."""
    return plan.out / f"documents_{stage.length}"


def write_documents(file: Path, text: str, count: int, length: int, needles: int) -> None:
    """`count` documents, each as long as a row of a batch, with so many needles."""
    parts = max(1, min(32, count // 1000))
    write = partial(
        some_documents, data=text.encode(), count=-(-count // parts), length=length, needles=needles
    )
    with file.open("wb") as out, ProcessPoolExecutor(min(parts, os.cpu_count() or 1)) as pool:
        for part in pool.map(write, range(parts)):
            out.write(part)


def some_documents(seed: int, data: bytes, count: int, length: int, needles: int) -> bytes:
    """`count` documents of training, one after the other."""
    draw = random.Random(seed)
    return b"".join(document(draw, data, length, needles)[0] for _ in range(count))


def document(
    draw: random.Random, data: bytes, length: int, count: int = NEEDLES, depth: float | None = None
) -> tuple[bytes, int]:
    """A document that ends with questions and their answers, and where the last answer begins.

    All `count` needles are asked for; with a `depth`, 0 to 1, only the one that lies there.
    """
    needles = [
        ("".join(draw.choices(string.ascii_lowercase, k=6)), "".join(draw.choices(string.digits, k=DIGITS)))
        for _ in range(count)
    ]
    asked = draw.sample(needles, count) if depth is None else needles[:1]
    end = "".join(f"\n#? {key}{value}" for key, value in asked).encode()
    hidden = [f"\n#~ {key}{value}".encode() for key, value in needles]
    room = length - 1 - len(end) - sum(map(len, hidden))
    start = draw.randrange(len(data) - room)
    filler = data[start : start + room]
    places = [draw.random() for _ in needles]
    if depth is not None:
        places[0] = depth
    parts, before = [], 0
    for place, needle in sorted(zip(places, hidden, strict=True)):
        at = int(place * room)
        parts += [filler[before:at], needle]
        before = at
    whole = b"".join([*parts, filler[before:], end, b"\0"])
    return whole, len(whole) - 1 - len(asked[-1][1])


def trained(plan: Plan, name: str, stage: Stage, gpu: int, *options: str) -> list[str]:
    """The lines that the trainer prints, in a process of its own."""
    settings = [
        *MODEL,
        f"model.attention={name}",
        f"data.path={documents(plan, stage)}",
        f"data.seq_len={stage.length}",
        f"data.batch_size={TOKENS // stage.length}",
        *([f"train.selection_loss={plan.selection_loss}"] if name == "nsa" else []),
        *options,
    ]
    command = [sys.executable, "-m", "nsa.train", *(f"--{each}" for each in settings)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    one = visible.split(",")[gpu] if visible else str(gpu)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": one}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout.splitlines()


def steps_for(plan: Plan, seconds: float) -> int:
    """The number of steps that both runs together take so many seconds for."""
    each = [
        TOKENS / last_rate(trained(plan, name, plan.stages[-1], 0, "train.steps=60")) for name in ATTENTIONS
    ]
    return max(EVALUATIONS, int(seconds / sum(each)) // 100 * 100)


def last_rate(lines: list[str]) -> float:
    """Tokens per second over the steps of the last line of losses, behind compilation and recording."""
    words = next(line for line in reversed(lines) if " tok/s " in line).split()
    return float(words[words.index("tok/s") + 1])


def learned(plan: Plan, name: str, steps: int, gpu: int) -> dict[str, object]:
    """Train in all stages, and ask for needles after each."""
    directory = plan.out / name
    kept = [f"checkpoint.dir={directory / 'checkpoints'}", "checkpoint.resume=true"]
    evaluated = [
        f"train.eval_every={steps // EVALUATIONS}",
        "train.eval_batches=8",
        "telemetry.every=1000000",
    ]
    rates, after, seconds = [], [], 0.0
    for stage in plan.stages:
        done = round(steps * stage.until)
        is_last = stage is plan.stages[-1]
        options = [
            f"train.steps={done}",
            f"optimizer.decay_share={0.2 if is_last else 1e-9}",
            f"telemetry.dir={telemetry(plan, name, stage)}",
        ]
        printed = trained(plan, name, stage, gpu, *kept, *evaluated, *options)
        seconds += float(printed[-1].split()[-2])  # done: N steps in S s
        rates.append(round(statistics.median(last_rate([line]) for line in printed if " tok/s " in line)))
        model, _ = load_model(directory / f"checkpoints/step_{done}")
        device = torch.device("cuda", gpu) if torch.cuda.is_available() else torch.device("cpu")
        model = model.to(device, torch.bfloat16 if device.type == "cuda" else None)
        after.append({"length": stage.length, "steps": done, **asked(model, plan.unseen, whole=is_last)})
        print(name, json.dumps(after[-1]), file=sys.stderr, flush=True)
    lines = heartbeats(telemetry(plan, name, plan.stages[-1]))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_loss": statistics.fmean([line["loss"] for line in lines if "loss" in line][-100:]),
        "eval_loss": next(line["eval_loss"] for line in reversed(lines) if "eval_loss" in line),
        "tokens": steps * TOKENS,
        "tokens_per_s": rates,
        "peak_memory_mib": max(line["memory"].get("peak_allocated_mib", 0) for line in lines),
        "seconds": round(seconds),
        "after_stages": after,
    }


def telemetry(plan: Plan, name: str, stage: Stage) -> Path:
    """The directory of a stage's telemetry."""
    return plan.out / name / f"telemetry_{stage.length}"


def heartbeats(directory: Path) -> list[dict[str, object]]:
    """The lines that a run has left there."""
    return [json.loads(line) for line in (directory / "heartbeat_rank0.jsonl").read_text().splitlines()]


def asked(model: NSAModel, data: bytes, *, whole: bool) -> dict[str, object]:
    """What is found in documents of `data`, short and long; where blocks are selected, also if all of them are.

    `whole`: many documents of each depth.
    """
    many = ASKED if whole else FEW
    figures = {f"found_{length}": found(model, data, length, many) for length in (1024, LENGTH)}
    layers = [block.attn for block in model.blocks if isinstance(block.attn, NSAAttention)]
    if layers:
        everything = {"select_count": LENGTH // layers[0].config.select_block, "backend": "torch"}
        for layer in layers:
            layer.config = layer.config.model_copy(update=everything)
        figures[f"found_{LENGTH}_with_all_blocks"] = found(model, data, LENGTH, FEW)
    return figures


@torch.inference_mode()
def found(model: NSAModel, data: bytes, length: int, documents_each: int) -> dict[str, object]:
    """The loss on documents of `data`, and percents by depth of the needle, from the beginning of a document to its end.

    `answers`: those that are right in every digit, when all are the most probable ones.
    """
    device, draw = next(model.parameters()).device, random.Random(1)
    whole, digits, of_documents = [], [], []
    for depth in range(DEPTHS):
        right = []
        for _ in range(documents_each):
            text, answer = document(draw, data, length, depth=(depth + draw.random()) / DEPTHS)
            tokens = torch.tensor([list(text)], device=device)
            # One forward, with the right digits before each: the most probable ones are all right, or a wrong one is.
            logits = model(tokens[:, :-1])
            of_documents.append(loss_of(logits, tokens[:, 1:]).item())
            guesses = logits[0, answer - 1 : answer - 1 + DIGITS].argmax(-1).tolist()
            right.append([a == b for a, b in zip(guesses, text[answer : answer + DIGITS], strict=True)])
        whole.append(round(100 * statistics.fmean(map(all, right)), 1))
        digits.append(round(100 * statistics.fmean(hit for hits in right for hit in hits), 1))
    return {
        "loss": round(statistics.fmean(of_documents), 4),
        "answers": whole,
        "digits": digits,
    }


def curves_of(plan: Plan, names: Sequence[str]) -> Curves:
    """The losses of both runs, by step."""
    titles = {"training loss": "loss", "loss on held-out rows": "eval_loss"}
    curves: Curves = {title: {name: [] for name in names} for title in titles}
    for name in names:
        for stage in plan.stages:
            run = losses(telemetry(plan, name, stage) / "heartbeat_rank0.jsonl")["loss"]
            for title, key in titles.items():
                curves[title][name] += smoothed(run.get(key, []))
    return curves


def smoothed(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of neighbouring points, some POINTS in all."""
    each = max(1, len(line) // POINTS)
    chunks = [line[i : i + each] for i in range(0, len(line), each)]
    return [(chunk[-1][0], round(statistics.fmean(value for _, value in chunk), 4)) for chunk in chunks]


def export(out: Path) -> None:
    """The NSA model for transformers, in bf16: small enough to publish."""
    from nsa.export import save_for_transformers
    from nsa.training.checkpoint import newest_checkpoint

    checkpoint = newest_checkpoint(out / "nsa/checkpoints")
    model, config = load_model(checkpoint)
    try:
        save_for_transformers(model.to(torch.bfloat16), config, checkpoint, out / "exported")
    except ValueError as error:  # transformers may be missing: the checkpoint has the weights
        print(f"not exported: {error}", file=sys.stderr)
        torch.save(model.to(torch.bfloat16).state_dict(), out / "weights_bf16.pt")


def table(figures: dict[str, dict[str, object]], steps: int) -> str:
    """The figures as rows of Markdown."""
    rows = [
        f"{steps} steps of {TOKENS} bytes",
        "",
        f"| | {' | '.join(figures)} |",
        f"|---{'|---' * len(figures)}|",
    ]
    flat = {name: {**of_stages(each.pop("after_stages")), **each} for name, each in figures.items()}
    for key in next(iter(flat.values())):
        cells = (written(each.get(key, "")) for each in flat.values())
        rows.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(rows)


def of_stages(stages: list[dict[str, object]]) -> dict[str, object]:
    """The figures after each stage, by a title each."""
    return {
        f"after {stage['steps']}: {kind}, {what}": value
        for stage in stages
        for kind, results in stage.items()
        if isinstance(results, dict)
        for what, value in results.items()
    }


def written(value: object) -> str:
    """A cell of the table."""
    if isinstance(value, list):
        return " ".join(f"{x:.0f}" for x in value)
    return (
        f"{value:,.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


if __name__ == "__main__":
    main()
