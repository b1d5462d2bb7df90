#!/usr/bin/env python3
"""Does it learn, and find needles? `python benchmarks/model/learning.py OUT [--minutes 9]`, on one GPU.

Trains a byte model of 8 layers (13 million parameters, with NSA 19) twice, with NSA and with dense attention, on the same documents in the same order:
8,192 bytes of Python's own library each, with eight needles (`#~ KEY is VALUE`) at random places, all of which are asked for
at the end. The minutes are those of both runs together, on as many tokens each. Then both are asked for one needle in documents
of files that no step saw. OUT gets the data, both runs' telemetry and checkpoints, learning.json, loss.svg, and the NSA
model as transformers writes it, in bf16.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import subprocess
import sys
import sysconfig
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

from nsa.model import NSAModel, loss_of
from nsa.plots import losses, svg
from nsa.restore import load_model

LENGTH = 8192  # bytes of a document, its end included
NEEDLES, DIGITS = 8, 6
BATCH = 4
DEPTHS, ASKED = 10, 50  # of the evaluation: documents at each depth of the needle
EVALUATIONS, POINTS = 20, 200  # of a curve
ATTENTIONS = ("nsa", "dense")
MODEL = [
    "model.layers=8", "model.dim=384", "model.heads=6", "model.kv_groups=2", "model.head_dim=64",
    "data.source=text", "data.documents=joined", f"data.seq_len={LENGTH}", f"data.batch_size={BATCH}",
    "train.precision=bf16", "optimizer.lr=1.5e-3", "optimizer.warmup_steps=100", "optimizer.schedule=wsd",
    "optimizer.weight_decay=0.1", "train.cuda_graph=true", "train.log_every=20",
]  # fmt: skip

Curves = dict[str, dict[str, list[tuple[float, float]]]]  # title, attention, points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9, help="of training, both runs together")
    parser.add_argument("--documents", type=int, default=40_000, help="of training, 8 KiB each")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    seen, unseen = library()
    write_documents(given.out / "documents", seen, given.documents)
    steps = steps_for(given.out, given.minutes * 60)
    figures = {name: learned(given.out, name, steps, unseen) for name in ATTENTIONS}
    curves = curves_of(given.out)
    result = {
        "machine": machine(),
        "figures": {"steps": steps, "text_bytes": len(seen.encode()), **figures},
        "curves": curves,
    }
    (given.out / "learning.json").write_text(json.dumps(result) + "\n")
    (given.out / "loss.svg").write_text(svg(curves), encoding="utf-8")
    export(given.out)
    print(json.dumps(result) if given.json else table(figures, steps))


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


def write_documents(file: Path, text: str, count: int) -> None:
    """`count` documents with needles, each as long as a row of a batch."""
    draw, data = random.Random(0), text.encode()
    with file.open("wb") as out:
        for _ in range(count):
            out.write(document(draw, data)[0])


def document(draw: random.Random, data: bytes, depth: float | None = None) -> tuple[bytes, int]:
    """A document that ends with questions and their answers, and where the last answer begins.

    All needles are asked for; with a `depth`, 0 to 1, only the one that lies there.
    """
    needles = [
        ("".join(draw.choices(string.ascii_lowercase, k=6)), "".join(draw.choices(string.digits, k=DIGITS)))
        for _ in range(NEEDLES)
    ]
    asked = draw.sample(needles, NEEDLES) if depth is None else needles[:1]
    end = "".join(f"\n#? {key} is {value}" for key, value in asked).encode()
    hidden = [f"\n#~ {key} is {value}".encode() for key, value in needles]
    room = LENGTH - 1 - len(end) - sum(map(len, hidden))
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


def trained(out: Path, name: str, steps: int, *options: str) -> list[str]:
    """The lines that the trainer prints, in a process of its own."""
    settings = [
        *MODEL,
        f"model.attention={name}",
        f"data.path={out / 'documents'}",
        f"train.steps={steps}",
        *options,
    ]
    command = [sys.executable, "-m", "nsa.train", *(f"--{each}" for each in settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout.splitlines()


def steps_for(out: Path, seconds: float) -> int:
    """The number of steps that both runs together take so many seconds for."""
    each = [BATCH * LENGTH / last_rate(trained(out, name, steps=60)) for name in ATTENTIONS]
    return max(EVALUATIONS, int(seconds / sum(each)) // 100 * 100)


def last_rate(lines: list[str]) -> float:
    """Tokens per second over the steps of the last line of losses, behind compilation and recording."""
    words = next(line for line in reversed(lines) if " tok/s " in line).split()
    return float(words[words.index("tok/s") + 1])


def learned(out: Path, name: str, steps: int, unseen: str) -> dict[str, object]:
    """Train, and ask for needles."""
    directory = out / name
    options = [f"telemetry.dir={directory / 'telemetry'}", f"checkpoint.dir={directory / 'checkpoints'}"]
    evaluated = [
        f"train.eval_every={steps // EVALUATIONS}",
        "train.eval_batches=8",
        "telemetry.every=1000000",
    ]
    printed = trained(out, name, steps, *options, *evaluated)
    seconds = float(printed[-1].split()[-2])  # done: N steps in S s
    lines = [
        json.loads(line) for line in (directory / "telemetry/heartbeat_rank0.jsonl").read_text().splitlines()
    ]
    model, _ = load_model(directory / f"checkpoints/step_{steps}")
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_loss": statistics.fmean([line["loss"] for line in lines if "loss" in line][-100:]),
        "eval_loss": next(line["eval_loss"] for line in reversed(lines) if "eval_loss" in line),
        "tokens": steps * BATCH * LENGTH,
        "tokens_per_s": round(statistics.median(last_rate([line]) for line in printed if " tok/s " in line)),
        "peak_memory_mib": max(line["memory"].get("peak_allocated_mib", 0) for line in lines),
        "seconds": round(seconds),
        **asked(model, unseen.encode()),
    }


@torch.inference_mode()
def asked(model: NSAModel, data: bytes) -> dict[str, object]:
    """The loss on documents of `data`, and percents by depth of the needle, from the beginning of a document to its end.

    `needles_found_pct`: answers that are right in every digit, when all are the most probable ones.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, draw = model.to(device, torch.bfloat16 if device == "cuda" else None), random.Random(1)
    whole, digits, of_documents = [], [], []
    for depth in range(DEPTHS):
        right = []
        for _ in range(ASKED):
            text, answer = document(draw, data, (depth + draw.random()) / DEPTHS)
            tokens = torch.tensor([list(text)], device=device)
            # One forward, with the right digits before each: the most probable ones are all right, or a wrong one is.
            logits = model(tokens[:, :-1])
            of_documents.append(loss_of(logits, tokens[:, 1:]).item())
            guesses = logits[0, answer - 1 : answer - 1 + DIGITS].argmax(-1).tolist()
            right.append([a == b for a, b in zip(guesses, text[answer : answer + DIGITS], strict=True)])
        whole.append(round(100 * statistics.fmean(map(all, right)), 1))
        digits.append(round(100 * statistics.fmean(hit for hits in right for hit in hits), 1))
    return {
        "unseen_loss": statistics.fmean(of_documents),
        "needles_found_pct": whole,
        "digits_right_pct": digits,
    }


def curves_of(out: Path) -> Curves:
    """The losses of both runs, by step."""
    runs = {name: losses(out / name / "telemetry/heartbeat_rank0.jsonl")["loss"] for name in ATTENTIONS}
    return {
        title: {name: smoothed(run.get(key, [])) for name, run in runs.items()}
        for title, key in (("training loss", "loss"), ("loss on held-out rows", "eval_loss"))
    }


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
    rows = [f"{steps} steps of {BATCH * LENGTH} bytes", "", "| | nsa | dense |", "|---|---|---|"]
    for key in figures["nsa"]:
        values = (figures[name][key] for name in ATTENTIONS)
        cells = (
            " ".join(f"{v:.0f}" for v in x)
            if isinstance(x, list)
            else f"{x:,.4g}"
            if isinstance(x, float)
            else f"{x:,}"
            for x in values
        )
        rows.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
