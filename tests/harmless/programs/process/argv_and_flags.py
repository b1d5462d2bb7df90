# how: rank -W ignore -X showrefcount
import sys

print(sys.argv, sys.orig_argv[1:], sys.flags, sys.warnoptions, sys._xoptions)
