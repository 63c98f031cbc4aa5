"""Closed forms, computed before or without any run."""
