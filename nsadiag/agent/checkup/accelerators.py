"""`nsadiag doctor --gpus`: all GPUs of this machine, loaded for some seconds, and what they got wrong or were slow at."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.gpu import gpus
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.checkup.check import Check, Status
from nsadiag.deadlines import programs
from nsadiag.evidence.phrases import count

TRIAL = Path(__file__).with_name("gpu_trial.py")
START_S = 60.0  # torch's import, a context on each GPU, and NCCL's set-up, on a busy machine
# GPUs of one model differ by some per cent under full load, as their power does. One that is shared loses a third and more.
SLOWER = 1.15
# Links between pairs are of few kinds (NVLink, PCIe, through the host): half of what most pairs have is another kind, or broken.
FEWER = 0.5
STAGES = ("devices", "products", "pairs", "together")
ON_ITS_WAY = {
    "devices": "torch saw no GPUs",
    "products": "the matrix products did not end",
    "pairs": "copies between the GPUs did not end",
    "together": "the all-reduce over all GPUs did not end",
}

Told = Mapping[str, Any]


def try_gpus(python: str, seconds: float) -> list[Check]:
    """A check by GPU, one of the links between them, and one of NCCL."""
    if not gpus.is_there():
        return [
            Check(
                name="GPUs", status="missing", detail="no NVIDIA driver", essential=True,
                remedy="run it on a machine with GPUs, and in a container with them: docker run --gpus all",
            )
        ]  # fmt: skip
    others = _others()  # before the trial is one of them
    return judged(*_trial(python, seconds), others)


def judged(told: Mapping[str, Told], ending: str, others: Mapping[str, Sequence[int]]) -> list[Check]:
    """The checks that the stages of a trial come to.

    `ending` is how it ended if not by itself, and `others` has the processes that computed on each GPU before, by its identifier.
    """
    if "products" not in told:
        return [_stopped("GPUs", "products" if "devices" in told else "devices", ending)]
    names, uuids = told["devices"]["names"], told["devices"]["uuids"]
    checks = [
        _gpu(index, names, told["products"]["gpus"], others.get(uuid, [])) for index, uuid in enumerate(uuids)
    ]
    if len(names) > 1:
        checks += [
            _links(told["pairs"]["pairs"]) if "pairs" in told else _stopped("GPU links", "pairs", ending),
            _nccl(told["together"]) if "together" in told else _stopped("NCCL", "together", ending),
        ]
    return checks


def _others() -> dict[str, list[int]]:
    """Processes that compute on each GPU before we do, where the driver tells: its numbers are not those of CUDA_VISIBLE_DEVICES."""
    try:
        document, _ = gpus.state()
    except CaptureError:
        return {}
    return {
        device["uuid"].removeprefix("GPU-"): [process["pid"] for process in device.get("processes", [])]
        for device in document["devices"]
    }


def _trial(python: str, seconds: float) -> tuple[dict[str, Told], str]:
    """Its words by stage, and how it ended if not by itself."""
    try:
        done = programs.run([python, str(TRIAL), str(seconds)], seconds=seconds + START_S, stderr_tail=4096)
    except programs.Unfinished as unfinished:
        return _stages(unfinished.stdout), f"no word for {seconds + START_S:g} s"
    except OSError as error:
        return {}, f"{error.strerror}: {python}"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return _stages(done.stdout), last[0] if done.returncode else ""


def _stages(text: str) -> dict[str, Told]:
    found: dict[str, Told] = {}
    for line in text.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("stage") in STAGES:
            found[told["stage"]] = told
    return found


def _stopped(name: str, stage: str, ending: str) -> Check:
    return Check(
        name=name, status="missing", detail=f"{ON_ITS_WAY[stage]}: {ending}", essential=True,
        remedy="nvidia-smi and the kernel's log (dmesg | grep -i xid) say more; or name the Python that has torch: --python PATH",
    )  # fmt: skip


def _gpu(index: int, names: Sequence[str], told: Sequence[Told], others: Sequence[int]) -> Check:
    """Bits first: one that computes otherwise is worse than a slow one."""
    name, own = f"GPU {index}", told[index]
    if "error" in own:
        return Check(
            name=name, status="limited", detail=f"not tried: {own['error']}", remedy=_who(others) or "nvidia-smi says who has it"
        )  # fmt: skip
    alike = {
        i: each for i, each in enumerate(told)
        if names[i] == names[index] and each.get("size") == own["size"]
    }  # fmt: skip
    speed = f"{2 * own['size'] ** 3 / own['seconds'] / 1e12:.0f} TFLOP/s"
    made = f"{names[index]}: {own['products']:,} products of {own['size']}² in bf16"
    agree = sum(bool(each["bits"] == own["bits"]) for each in alike.values())
    if own["differ"] or 2 * agree < len(alike):
        said = (
            f"{own['differ']:,} of them differ in bits from its first"
            if own["differ"]
            else "the bits are not those of most GPUs of this model"
        )
        return Check(
            name=name, status="missing", detail=f"{made}: {said}", essential=True,
            remedy="take this GPU out of the job: it computes wrong values (dcgmi diag -r 3 for the vendor)",
        )  # fmt: skip
    if 2 * agree == len(alike):
        return Check(
            name=name, status="limited", detail=f"{made}: as many GPUs of this model have other bits",
            remedy="one of them computes wrong values: dcgmi diag -r 3 may tell which",
        )  # fmt: skip
    fastest = min(alike, key=lambda i: float(told[i]["seconds"]))
    times = own["seconds"] / told[fastest]["seconds"]
    status: Status = "works"
    detail, remedy = f"{made}, all with the same bits, {speed}", ""
    if times >= SLOWER:
        status = "limited"
        detail = f"{made}, the same bits, but {times:.1f} times as long as on GPU {fastest} ({speed})"
        remedy = _who(others) or "nvidia-smi -q -d PERFORMANCE says what slows it (heat, power, clocks)"
    elif others:
        remedy = _who(others)
    return Check(name=name, status=status, detail=detail, remedy=remedy)


def _who(pids: Sequence[int]) -> str:
    if not pids:
        return ""
    shown = ", ".join(map(str, pids[:5]))
    return f"{count(len(pids), 'other process')} on it: pid {shown}"


def _links(pairs: Sequence[Told]) -> Check:
    name = "GPU links"
    failed = [each for each in pairs if "error" in each or each["wrong"]]
    if failed:
        said = "; ".join(
            f"{each['from']} to {each['to']}: {each.get('error') or 'other bytes arrive'}"
            for each in failed[:3]
        )
        return Check(
            name=name, status="missing", detail=said, essential=True,
            remedy="NCCL_P2P_DISABLE=1 goes around it; nvidia-smi topo -p2p rw, and nvidia-smi nvlink -e for its errors",
        )  # fmt: skip
    usual = statistics.median(each["bytes_per_s"] for each in pairs)
    fastest = max(each["bytes_per_s"] for each in pairs)
    slow = [each for each in pairs if each["bytes_per_s"] < FEWER * (usual if len(pairs) > 2 else fastest)]
    span = f"{count(len(pairs), 'direction')}, {usual / 1e9:.0f} GB/s in the middle"
    if slow:
        said = ", ".join(f"{x['from']} to {x['to']} {x['bytes_per_s'] / 1e9:.0f} GB/s" for x in slow[:4])
        return Check(
            name=name, status="limited", detail=f"{span}; {said}",
            remedy="nvidia-smi topo -m, and nvidia-smi nvlink -s: is a link down?",
        )  # fmt: skip
    return Check(name=name, status="works", detail=span)


def _nccl(told: Told) -> Check:
    name = "NCCL"
    wrong = [index for index, number in enumerate(told["wrong"]) if number]
    if wrong:
        return Check(
            name=name, status="missing", essential=True,
            detail=f"NCCL {told['nccl']}: wrong sums on GPU {', '.join(map(str, wrong))}",
            remedy="run it again with NCCL_P2P_DISABLE=1 and with NCCL_ALGO=Ring: which way between the GPUs is it?",
        )  # fmt: skip
    speed = f"{told['bytes_per_s'] / 1e9:.0f} GB/s of each GPU's bus"
    return Check(
        name=name,
        status="works",
        detail=f"NCCL {told['nccl']}: an all-reduce over all GPUs is right, {speed}",
    )
