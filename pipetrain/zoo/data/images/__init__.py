"""Data sets of images with a class each."""
