"""Imports of large and of optional packages, with any builds of torch and torchvision."""
