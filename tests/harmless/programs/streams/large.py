# how: rank
# alone
import hashlib

for n in range(20000):
    print(hashlib.sha256(str(n).encode()).hexdigest(), n)
