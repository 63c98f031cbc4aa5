"""Models, data sets, vocabularies, decoding, optimizers and formats of messages that come with pipetrain.

Choices in YAML name them; the runner imports none of them. Imports the engine and the loader.
"""
