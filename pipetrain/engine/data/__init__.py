"""Minibatches as executors read them."""
