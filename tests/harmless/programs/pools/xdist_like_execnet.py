# how: rank
# slow
# needs: execnet
import execnet

gateway = execnet.makegateway("popen//id=one")
channel = gateway.remote_exec("channel.send(channel.receive() + 1)")
channel.send(41)
print(channel.receive())
gateway.exit()
