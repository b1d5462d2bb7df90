"""Order and lifetime within a step: what gradients go through between the backward that makes them and the step that uses them."""
