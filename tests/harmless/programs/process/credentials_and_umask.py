# how: rank
import os

old = os.umask(0o22)
print(os.getuid(), os.getgid(), os.getgroups(), oct(old), os.getcwd() == os.environ["PWD"] or "elsewhere")
open("made", "w").close()
print(oct(os.stat("made").st_mode))
