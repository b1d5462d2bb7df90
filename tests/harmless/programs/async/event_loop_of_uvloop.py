# how: rank
# needs: uvloop
import asyncio
import signal
import sys

import nets
import torch
import uvloop


async def ticks(count):
    for _ in range(count):
        await asyncio.sleep(0)
    return count


async def main():
    loop, model = asyncio.get_running_loop(), nets.Net()
    got = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, got.set)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input())", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    trained, out, many = await asyncio.gather(
        loop.run_in_executor(None, nets.train, model, 30, None, torch.ones(2, 8)),
        process.communicate(b"given\n"),
        ticks(50),
    )
    own = nets.Net()
    for _ in range(30):
        nets.train(own, 1, x=torch.ones(2, 8))
        await asyncio.sleep(0)
    signal.raise_signal(signal.SIGUSR1)
    await got.wait()
    print(trained[0], out, many, nets.digest(model, own), type(loop).__module__)


uvloop.run(main())
