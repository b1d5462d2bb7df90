# how: rank
# alone
import os
import pty
import sys

if len(sys.argv) > 1:
    import nets
    import torch

    print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), os.ttyname(1) != "")
    print(nets.train(nets.Net(), 20)[0], input("name? "), torch.get_num_threads())
    sys.stderr.write("last words\n")
    sys.exit(4)
said = []


def reads(descriptor):
    data = os.read(descriptor, 1024)
    said.append(data)
    if b"name? " in data:
        os.write(descriptor, b"somebody\n")
    return data


read, write = os.pipe()
os.dup2(read, 0)
os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
status = pty.spawn([sys.executable, "train.py", "inner"], reads, lambda descriptor: b"")
print(os.waitstatus_to_exitcode(status), b"".join(said))
