"""The words of a loop that naps between two questions: whether it asks the world, or its own process."""

from __future__ import annotations

import re

ASKS_OUTSIDE = re.compile(
    r"exists|is_file|isfile|is_dir|\bstat\(|O_EXCL|\bopen\(|listdir|glob|iterdir|scandir|connect|recv|request|urlopen"
    r"|\.get\(|\.poll\(|\.check\(|store|Popen|subprocess|head_object|lock_?file|\.lock\b|flock",
    re.IGNORECASE,
)
ASKS_INSIDE = re.compile(r"is_set\(|\.empty\(|qsize|\.locked\(|get_nowait")
OF_CHILDREN = re.compile(
    r"\.poll\(|is_alive\(|exitcode|returncode|waitpid|pid_exists"
)  # processes of its own
# Libraries that nap until a file, a lock or a server lets them go on.
LIBRARIES = re.compile(
    r"/(torch/utils/file_baton\.py|torch/utils/_filelock\.py|filelock/|fasteners/|portalocker/|huggingface_hub/|fsspec/"
    r"|s3fs/|gcsfs/|boto\w*/|urllib3/|requests/|redis/|etcd\w*/|wandb/|mlflow/|ray/|paramiko/)"
)
# Loops of servers, which call the user's code once a request has come.
SERVERS = re.compile(
    r"/(socketserver|uvicorn/server|hypercorn/\w+|waitress/\w+|gunicorn/\w+|aiohttp/web|tornado/ioloop|grpc/_server)\.py$"
)
