"""Runs programs one after another, each in a process and a folder of its own, and says how each ended."""

import json
import os
import subprocess
import sys


def run(told):
    here = os.path.join(os.getcwd(), told["name"])
    more = dict(pair.replace("$PWD", here).split("=", 1) for pair in told["env"])
    given = told["stdin"] + "\n" if told["stdin"] else ""
    job = subprocess.Popen(
        told["command"], cwd=here, env={**os.environ, "PWD": here, **_joined(more)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out_err = job.communicate(given.encode(), timeout=250)
    except subprocess.TimeoutExpired:
        job.kill()
        out_err = job.communicate()
    for stream, text in zip((sys.stdout, sys.stderr), out_err, strict=True):
        lines = text.decode(errors="backslashreplace").split("\n")
        stream.write("\n".join((f"=== {told['name']}", *(sorted(lines) if told["unordered"] else lines), "")))
        stream.flush()
    print(f"ended with {job.returncode}", flush=True)


def _joined(more):
    """A variable of the user's that we have added to is still added to."""
    path = os.environ.get("PYTHONPATH")
    if path and "PYTHONPATH" in more:
        return {**more, "PYTHONPATH": os.pathsep.join((path, more["PYTHONPATH"]))}
    return more


if __name__ == "__main__":
    with open("each.json") as file:
        for told in json.load(file):
            run(told)
    for stream in (sys.stdout, sys.stderr):
        stream.write("=== end\n")
