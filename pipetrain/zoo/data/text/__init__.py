"""Text as data: files, vocabularies, and samples of tokens."""
