# how: rank
import os
import shutil

print(shutil.get_terminal_size((7, 7)))
for n in range(3):
    try:
        print(os.get_terminal_size(n))
    except OSError as error:
        print(error.errno)
