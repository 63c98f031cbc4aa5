"""How torch, torchvision and torch's compiler are imported: fast, whatever is installed, and only where needed.

Also what is asked of the system by way of its C library.
"""
