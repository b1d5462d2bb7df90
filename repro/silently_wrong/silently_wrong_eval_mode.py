"""The model is validated after each epoch, and never set back to train mode.

Modelled on the question that PyTorch's forum has answered most often: from the second epoch on dropout does nothing.

On plain torchrun: nothing at all; the validation loss rises earlier than it should.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (left_in_eval_mode)
  guilty_ranks: [0, 1]
  code: "model.eval()"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    rows = torch.randn(192, 8)
    dataset = TensorDataset(rows, rows[:, :2].argmax(1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    layers = [nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2)]
    model = DDP(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = (model(rows.to(device)).argmax(1).cpu() == dataset.tensors[1]).float().mean()
        if rank == 0:
            print(f"epoch {epoch} accuracy {correct.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
