# how: rank
# slow
# alone
import sys

for stream in (sys.stdout, sys.stderr):
    for name in ("mode", "name", "encoding", "errors", "newlines", "closed", "write_through"):
        print(name, getattr(stream, name, "absent"))
    print(type(stream).__name__, type(stream.buffer).__name__, type(stream.buffer.raw).__name__, repr(stream))
    print(
        stream.writable(), stream.readable(), stream.fileno(), stream.buffer.raw.name, stream.buffer.raw.mode
    )
