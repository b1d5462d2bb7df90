# how: rank
# exits: 4
# slow
# needs: root
import os
import sys
import tempfile

import nets

folder = tempfile.mkdtemp()
nets.train(nets.Net())
os.chroot(folder)
os.chdir("/")
print(nets.train(nets.Net())[0], os.listdir("/"))
sys.exit(4)
