"""The tracker of TensorBoard, and what all trackers share."""
