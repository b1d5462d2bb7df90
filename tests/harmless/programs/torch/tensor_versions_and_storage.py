# how: many
import nets

model = nets.Net()
_, optimizer = nets.train(model, 80)
for parameter in model.parameters():
    print(
        parameter._version,
        parameter.grad._version,
        parameter.untyped_storage().nbytes(),
        parameter.is_leaf,
        parameter.grad.is_contiguous(),
        parameter.output_nr,
    )
