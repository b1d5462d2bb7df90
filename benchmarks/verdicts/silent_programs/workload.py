"""Start of a job, data and models that the programs share: two ranks, gloo, CPU."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset


def start(seed: int = 0) -> tuple[int, int]:
    """Joins the process group; returns rank and world size."""
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def rows(count: int = 256, features: int = 16, classes: int = 4) -> TensorDataset:
    """Points, and the class of each."""
    maker = torch.Generator().manual_seed(7)
    points = torch.randn(count, features, generator=maker)
    return TensorDataset(points, points[:, :classes].argmax(1))


def tokens(count: int = 128, length: int = 12, vocabulary: int = 32) -> torch.Tensor:
    """Sequences in which each token depends on the one before."""
    maker = torch.Generator().manual_seed(11)
    first = torch.randint(vocabulary, (count, 1), generator=maker)
    return (first + torch.arange(length) * torch.randint(1, 4, (count, 1), generator=maker)) % vocabulary


class MLP(nn.Module):
    """Two hidden layers."""

    def __init__(self, features: int = 16, hidden: int = 32, classes: int = 4, dropout: float = 0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout))
        self.middle = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.middle(self.body(points))))
