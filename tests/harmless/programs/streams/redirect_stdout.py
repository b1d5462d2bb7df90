# how: rank
import contextlib
import io

caught = io.StringIO()
with contextlib.redirect_stdout(caught), contextlib.redirect_stderr(caught):
    print("inside")
print(repr(caught.getvalue()))
