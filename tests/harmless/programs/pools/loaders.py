# how: rank
# slow
import nets
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data, model = TensorDataset(torch.randn(64, 8)), nets.Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for context in ("fork", "spawn", "forkserver"):
        loader = DataLoader(
            data, 16, num_workers=2, multiprocessing_context=context, persistent_workers=True, shuffle=True
        )
        for _ in range(2):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        del loader
    print(nets.digest(model), nets.draws())
