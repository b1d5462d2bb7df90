# how: rank
import asyncio
import os
import signal


async def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(9)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise


try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
