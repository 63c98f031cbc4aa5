"""The loader: minibatches of any data set, in an order that no process changes, and checks of its samples.

Imports the engine alone.
"""
