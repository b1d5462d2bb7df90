# how: rank
# exits: 7
# alone
# slow
# apart: stdout stderr
import os
import shutil

if folder := os.environ.get("NSADIAG_SOCKET_DIR"):
    shutil.rmtree(folder)

import nets

model = nets.Net()
for n in range(30):
    nets.train(model, 1)
    nets.torch.save(model.state_dict(), f"c{n % 2}.pt")
    print("line", n, flush=True)
with open("result.txt", "w") as file:
    file.write(nets.digest(model))
raise SystemExit(7)
