"""What a run shows and leaves behind: metrics.jsonl, TensorBoard, the progress bar, summary.json."""
