# how: rank
# needs: root
import os

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(os.getresuid())
