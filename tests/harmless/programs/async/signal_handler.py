# how: rank
import asyncio
import os
import signal

import nets


async def main():
    came = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, came.set)
    nets.train(nets.Net())
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(came.wait(), 20)
    print("came")


asyncio.run(main())
