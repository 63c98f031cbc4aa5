"""Imports of large packages, faster."""
