# how: rank
import nets
import seen

nets.train(nets.Net())
seen.say(seen.handlers(), seen.kernel_signals())
