# how: rank
import asyncio


async def fail():
    raise ValueError("never awaited for")


async def main():
    task = asyncio.create_task(fail())
    await asyncio.sleep(0.05)
    del task


asyncio.run(main(), debug=False)
