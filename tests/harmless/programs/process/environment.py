# how: python
# alone
import seen

for name, value in sorted(seen.environment().items()):
    if name != "_":
        seen.say(name, value)
