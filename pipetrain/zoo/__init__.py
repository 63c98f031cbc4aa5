"""Models, data sets, vocabularies, decoding and optimizers that come with pipetrain.

Choices in YAML name them; nothing else imports them. Imports the engine and the loader.
"""
