# how: rank
import asyncio


async def work(n):
    await asyncio.sleep(0.01 * n)
    return n


async def main():
    print(await asyncio.gather(*(work(n) for n in range(5))))
    try:
        await asyncio.wait_for(asyncio.sleep(9), 0.05)
    except asyncio.TimeoutError:
        print("timed out")
    async with asyncio.TaskGroup() as group:
        group.create_task(work(1))
    print(sorted(t.get_name()[:4] for t in asyncio.all_tasks()))


asyncio.run(main())
