# how: python
# alone
# by-design: parent
import os
import pathlib

print("nsadiag" in pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text())
