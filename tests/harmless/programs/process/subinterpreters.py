# how: rank
import sys

import seen

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

before = seen.state()
one = interpreters.create()
script = "import sys; print('sub', sys.stdout.name, type(sys.stdout).__name__); import signal; print(signal.getsignal(signal.SIGTERM))"
getattr(interpreters, "exec", interpreters.run_string if hasattr(interpreters, "run_string") else None)(
    one, script
)
interpreters.destroy(one)
sys.stdout.flush()
seen.say_changes(before, seen.state())
try:
    raise SystemExit(3) if False else KeyError("x")
except KeyError as error:
    print(repr(error))
