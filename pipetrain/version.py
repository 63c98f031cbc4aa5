"""The version of this package, apart from the root's other names."""

__version__ = "0.1.0"
