# how: rank
# alone
# by-design: streams
import os
import stat

for number in (1, 2):
    print(stat.S_ISFIFO(os.fstat(number).st_mode), stat.S_ISREG(os.fstat(number).st_mode))
