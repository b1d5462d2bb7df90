# how: many
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import subprocess

import seen

for owner in (
    multiprocessing,
    multiprocessing.process.BaseProcess,
    multiprocessing.util,
    subprocess,
    subprocess.Popen,
):
    seen.surface(owner)
