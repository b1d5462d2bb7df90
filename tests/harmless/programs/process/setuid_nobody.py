# how: rank
# exits: 1
# slow
# needs: root
import os

import nets

nets.train(nets.Net())
os.setgid(65534)
os.setuid(65534)
print(os.getuid(), nets.train(nets.Net())[0])
raise ValueError("after setuid")
