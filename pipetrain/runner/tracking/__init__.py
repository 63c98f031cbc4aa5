"""Records of a run: metrics.jsonl, callbacks and trackers, the progress bar, summary.json."""
