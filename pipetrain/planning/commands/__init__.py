"""The commands that measure layers and plan or predict pipelines."""
