# how: rank
# needs: greenlet
import greenlet
import nets
import torch
from torch import nn

main = greenlet.getcurrent()
order = []


class Yields(nn.Module):
    """Lets another one run in the midst of its forward and of its backward."""

    def __init__(self, name):
        super().__init__()
        self.net, self.name = nets.Net(), name

    def forward(self, x):
        order.append(self.name)
        main.switch()
        y = self.net(x)
        main.switch()
        return y


def work(name, results, steps):
    model = Yields(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        main.switch()
        loss.backward()
        optimizer.step()
    results[name] = loss.item().hex(), nets.digest(model)
    if name == "c":
        raise ValueError("in the midst")


results = {}
lets = {name: greenlet.greenlet(work) for name in "abc"}
steps = {"a": 40, "b": 25, "c": 9}
for name, let in lets.items():
    torch.manual_seed(1)
    let.switch(name, results, steps[name])
while lets:
    for name, let in list(lets.items()):
        try:
            let.switch()
        except ValueError as error:
            print(name, error)
        if let.dead:
            del lets[name]
print(results, len(order), order[:9])
abandoned = greenlet.greenlet(work)
abandoned.switch("d", results, 5)
del abandoned  # thrown out of its forward by GreenletExit
print(nets.train(nets.Net(), 30)[0])
