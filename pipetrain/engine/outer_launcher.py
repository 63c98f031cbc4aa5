"""Detects an outer launcher, such as torchrun, and this process's rank under it."""

import os


def is_present() -> bool:
    """True if a launcher has given this process a rank."""
    return "RANK" in os.environ


def leads() -> bool:
    """True for rank 0, and without a launcher: the process that writes what is written once."""
    return os.environ.get("RANK", "0") == "0"
