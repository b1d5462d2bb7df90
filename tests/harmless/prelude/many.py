"""Runs programs one after another in this process, each in a folder of its own, and says where each begins.

Watched and plain alike run the same ones in the same order, so what one leaves to the next is alike, too.
"""

import gc
import os
import random
import sys
import traceback
import types

import seen

# Between ranks these change by gloo's own threads and connections, when they like.
GLOO = ("descriptors", "native threads")


def begin(name):
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        stream.write(f"{seen_rank()}=== {name}\n")
        stream.flush()


def seen_rank():
    return f"[{os.environ['RANK']}] " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""


def reset():
    """Each begins with the same random numbers and an empty dynamo, whoever ran before it."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def run(path):
    module = types.ModuleType("__main__")
    module.__file__ = path
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), vars(module))
    except BaseException:
        seen.say("raised, and nobody caught it:", seen.plain(traceback.format_exc()))
    finally:
        sys.modules["__main__"] = before
        gc.collect()


def meet():
    """Ranks begin each program together; where one is lost, the others go no further."""
    dist = sys.modules.get("torch.distributed")
    if (
        dist is not None
        and dist.is_initialized()
        and dist.get_world_size() == int(os.environ["WORLD_SIZE"]) > 1
    ):
        dist.barrier()


def main():
    home = os.getcwd()
    for path in sys.argv[1:]:
        name = os.path.splitext(os.path.basename(path))[0]
        begin(name)
        reset()
        os.makedirs(name, exist_ok=True)
        os.chdir(name)
        before = seen.state()
        run(path)
        seen.say_changes(before, seen.state(), () if not seen_rank() else GLOO)
        os.chdir(home)
        meet()
    begin("end")


if __name__ == "__main__":
    main()
