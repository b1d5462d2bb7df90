# how: rank
import asyncio
import contextvars

import nets
import torch
from torch import nn

where = contextvars.ContextVar("where", default="nowhere")
seen = []


class Coroutine(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    async def forward(self, x):
        await asyncio.sleep(0)
        y = self.net(x)
        await asyncio.sleep(0)
        return y


class Generates(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        for _ in range(3):
            x = self.net(x)
            yield x


def notes(gradient):
    seen.append(where.get())


async def trains(name, steps):
    where.set(name)
    model = Coroutine()
    model.net.a.weight.register_hook(notes)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (await model(torch.ones(2, 8))).square().mean()
        loss.backward()
        optimizer.step()
        await asyncio.sleep(0)
    return loss.item().hex(), nets.digest(model)


async def main():
    return await asyncio.gather(*(trains(name, 30) for name in "abc"), return_exceptions=True)


print(asyncio.run(main()), [seen.count(name) for name in "abc"], seen[:6])
model = Generates()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for _ in range(40):
    optimizer.zero_grad()
    sum(y.square().mean() for y in model(torch.ones(2, 8))).backward()
    optimizer.step()
left = model(torch.ones(2, 8))
next(left)
left.close()
context = contextvars.copy_context()
print(nets.digest(model), context.run(nets.train, nets.Net(), 20)[0], where.get())
