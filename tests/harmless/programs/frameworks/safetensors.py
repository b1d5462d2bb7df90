# how: many
# needs: safetensors
import nets
from safetensors.torch import load_file, load_model, save_file, save_model

model = nets.Net()
nets.train(model, 30)
save_file(model.state_dict(), "x.safetensors")
save_model(model, "y.safetensors")
print(sorted(load_file("x.safetensors")), load_model(nets.Net(), "y.safetensors"))
