# how: rank
# slow
# alone
import sys

sys.stdout = None
print("lost")
sys.stdout = sys.__stdout__
print("kept")
