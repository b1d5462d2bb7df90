# how: rank
# exits: 7
# alone
# slow
# by-design: mapped
# apart: stdout stderr
import glob
import os

for name in glob.glob(os.environ.get("NSADIAG_RUN_DIR", "/nowhere") + "/ranks/*/blackbox.bin"):
    os.truncate(name, 0)

import nets

model = nets.Net()
for n in range(30):
    nets.train(model, 1)
    nets.torch.save(model.state_dict(), f"c{n % 2}.pt")
    print("line", n, flush=True)
with open("result.txt", "w") as file:
    file.write(nets.digest(model))
raise SystemExit(7)
