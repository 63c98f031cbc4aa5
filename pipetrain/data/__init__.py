"""The loader: minibatches of any data set, in an order that no process changes, and checks of its samples.

`files` reads what anybody may have written, and keeps the cache; `libraries` imports optional packages.

Imports the engine alone.
"""
