"""Executors: each stage in its own process, or all stages in one process. Both carry out the same lists."""
