"""The training loop: optimizer, gradient scaler, settings, stop flags."""
