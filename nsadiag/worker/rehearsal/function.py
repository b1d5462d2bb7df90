"""A rank that is a call of one function: `python -m nsadiag.worker.rehearsal.function FILE`, with FILE as `nsadiag.check` has written it.

As multiprocessing's spawn does it: the module of the function is imported again, the script of the caller under another name
than `__main__`.
"""

import pickle
import sys
from multiprocessing import spawn
from pathlib import Path

if __name__ == "__main__":
    caller, call = pickle.loads(Path(sys.argv[1]).read_bytes())
    spawn.prepare(caller)
    function, arguments = pickle.loads(call)
    function(*arguments)
