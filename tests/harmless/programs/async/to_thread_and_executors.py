# how: rank
# slow
import asyncio
import concurrent.futures

import nets


async def main():
    print(await asyncio.to_thread(lambda: nets.train(nets.Net())[0]))
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        print(await loop.run_in_executor(pool, lambda: __import__("threading").current_thread().name))


asyncio.run(main())
