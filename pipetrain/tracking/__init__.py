"""Records of a run: metrics.jsonl, TensorBoard, the progress bar, summary.json."""
