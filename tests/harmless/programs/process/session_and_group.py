# how: python
# slow
# alone
# by-design: parent
import os

print(os.getpid() == os.getpgid(0), os.getsid(0) == os.getpid())
