# how: rank -X dev
import seen

seen.say("no unclosed file of anybody's")
