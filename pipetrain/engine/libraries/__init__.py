"""Imports of torch, torchvision and torch's compiler: fast, with any builds of them, and only where needed.

Also calls of the system's C library.
"""
