"""Trackers whose packages are optional."""
