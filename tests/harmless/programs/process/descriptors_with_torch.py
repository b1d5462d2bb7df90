# how: rank
# by-design: descriptors
import nets
import seen

nets.train(nets.Net())
seen.say(seen.descriptors(), seen.next_descriptor())
