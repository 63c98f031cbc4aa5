"""What `pipetrain predict` shows."""
