"""A small model, a few steps, and digests of what torch holds."""

import hashlib
import os
import random
import sys
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
random.seed(0)
torch.manual_seed(0)
if "numpy" in sys.modules:
    sys.modules["numpy"].random.seed(0)
torch.set_num_threads(1)


def bits(tensor):
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def digest(*modules):
    """Of all parameters and buffers, bit by bit."""
    seen = hashlib.sha256()
    for module in modules:
        for name, value in sorted(module.state_dict().items()):
            seen.update(
                name.encode() + (bits(value) if isinstance(value, torch.Tensor) else repr(value).encode())
            )
    return seen.hexdigest()[:16]


def of(*tensors):
    """Digest of tensors, bit by bit."""
    return hashlib.sha256(b"|".join(bits(t) for t in tensors)).hexdigest()[:16]


def draws():
    """The states of all random generators, as the next number of each."""
    numbers = [random.random().hex(), torch.rand(()).item().hex()]
    if "numpy" in sys.modules:
        numbers.append(float(sys.modules["numpy"].random.random_sample()).hex())
    return numbers


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.a, self.b = nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def train(model, steps=6, optimizer=None, x=None, width=8):
    """The last loss as hexadecimal text, and the optimizer."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, width) if x is None else x).float().square().mean()
        loss.backward()
        optimizer.step()
    return loss.item().hex(), optimizer


def init():
    """Joins the default group by gloo, unless the programs before have; the rank."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return int(os.environ["RANK"])
