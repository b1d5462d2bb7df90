# how: rank
# slow
# alone
import atexit

for n in range(4):
    atexit.register(print, "bye", n)
print("end")
