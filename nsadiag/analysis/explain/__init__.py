"""From a divergence to the condition that it depends on."""
