"""Measured layer times and links, and what follows from them: cuts and predicted pipelines."""
