# how: rank
# alone
import sys

sys.__stdout__.write("one\n")
print("two")
sys.__stdout__.write("three\n")
print("four")
