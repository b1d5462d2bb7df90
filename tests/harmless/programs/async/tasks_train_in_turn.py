# how: rank
import asyncio
import contextlib

import nets
import torch


@contextlib.asynccontextmanager
async def turn():
    await asyncio.sleep(0)
    yield
    await asyncio.sleep(0)


async def batches(n):
    for step in range(n):
        await asyncio.sleep(0)
        yield torch.full((4, 8), 0.1 * step)


async def train(model, steps, fails=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    async for x in batches(steps):
        loss = model(x).square().mean()
        await asyncio.sleep(0)
        loss.backward()
        async with turn():
            optimizer.step()
        if fails is not None and float(x.max()) > 0.1 * fails:
            raise RuntimeError("stops")
        optimizer.zero_grad()
    return loss.item().hex()


async def main():
    models = [nets.Net() for _ in range(5)]
    jobs = [train(m, 10 + n, 6 if n == 3 else None) for n, m in enumerate(models)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    print([str(result) for result in results], nets.digest(*models))
    left = asyncio.create_task(train(models[0], 1000))
    for _ in range(50):
        await asyncio.sleep(0)
    left.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await left
    print(left.cancelled(), len(asyncio.all_tasks()))


for _ in range(2):
    asyncio.run(main())
