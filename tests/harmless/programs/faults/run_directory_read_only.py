# how: rank
# exits: 7
# alone
# slow
# apart: stdout stderr
# needs: root
import os
import subprocess

if run := os.environ.get("NSADIAG_RUN_DIR"):
    subprocess.run(["mount", "--bind", run, run], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", run], check=True)
    import atexit

    atexit.register(subprocess.run, ["umount", "--lazy", run], check=True)

import nets

model = nets.Net()
for n in range(30):
    nets.train(model, 1)
    nets.torch.save(model.state_dict(), f"c{n % 2}.pt")
    print("line", n, flush=True)
with open("result.txt", "w") as file:
    file.write(nets.digest(model))
raise SystemExit(7)
