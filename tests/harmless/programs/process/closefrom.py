# how: rank
import os

os.closerange(3, 1024)
files = [open(f"mine{n}", "w") for n in range(12)]
print([f.fileno() for f in files])
for file in files:
    file.write("user\n")
    file.close()
