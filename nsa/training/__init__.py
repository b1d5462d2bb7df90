"""All that the trainer, `nsa.train`, is made of besides the model: data, optimizer, checkpoints, telemetry."""
