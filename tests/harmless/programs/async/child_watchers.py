# how: rank
import asyncio
import os
import signal
import sys
import warnings

warnings.simplefilter("ignore")
import nets
import torch


async def child(code):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", f"import sys; print(sys.stdin.read()); sys.exit({code})",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate(b"given")
    return process.returncode, out


async def work(model):
    training = asyncio.to_thread(nets.train, model, 20, None, torch.ones(2, 8))
    return await asyncio.gather(training, *(child(code) for code in range(3)))


# Not those that are told of every child by SIGCHLD on one loop: with several children at once they may wait for ever.
names = ("PidfdChildWatcher", "ThreadedChildWatcher", "SafeChildWatcher")
for name in names:
    if not hasattr(asyncio, name):
        continue
    watcher = getattr(asyncio, name)()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    if name != "ThreadedChildWatcher":
        watcher.attach_loop(loop)
    asyncio.get_event_loop_policy().set_child_watcher(watcher)
    model = nets.Net()
    (loss, _), *children = loop.run_until_complete(work(model))
    print(name, loss, children, nets.digest(model))
    watcher.close()
    loop.close()
descriptor = os.pidfd_open(pid := os.spawnl(os.P_NOWAIT, "/bin/true", "true"))
print(os.waitid(os.P_PIDFD, descriptor, os.WEXITED).si_status, signal.getsignal(signal.SIGCHLD))
os.close(descriptor)
