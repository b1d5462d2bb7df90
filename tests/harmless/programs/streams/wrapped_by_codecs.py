# how: rank
# slow
# alone
import codecs
import sys

sys.stdout = codecs.getwriter("utf-8")(sys.stdout.buffer)
print("\u2603")
