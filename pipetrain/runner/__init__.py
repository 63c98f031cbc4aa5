"""A run, from its settings to its files: configuration, training, processes, records, the Python API.

Imports the engine, the graph and the loader. It finds models, data sets, partitions and plugins by the targets of a
configuration.
"""
