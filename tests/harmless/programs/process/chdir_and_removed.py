# how: rank
import os
import shutil

import nets

nets.train(nets.Net())
os.mkdir("gone")
os.chdir("gone")
shutil.rmtree("../gone")
try:
    os.getcwd()
except FileNotFoundError:
    print("gone")
print(nets.train(nets.Net())[0])
