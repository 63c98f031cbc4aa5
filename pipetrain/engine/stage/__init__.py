"""One stage of the pipeline: its layers, weights and optimizer."""
