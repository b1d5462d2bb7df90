# how: many
import weakref

import nets
import seen

model = nets.Net()
_, optimizer = nets.train(model, 4)
seen.say(len(weakref.getweakrefs(optimizer)) >= 0, weakref.WeakSet([model, optimizer]) is not None)
