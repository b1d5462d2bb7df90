# how: rank
import asyncio
import sys


async def main():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input())", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    print(await process.communicate(b"given\n"), process.returncode)
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print(await reader.read())
    writer.close()
    server.close()


asyncio.run(main())
