"""Trackers: callbacks that record a run for TensorBoard, MLflow or Weights & Biases, or in a CSV file."""
