"""Data sets by task, and the loader that turns any of them into minibatches."""
