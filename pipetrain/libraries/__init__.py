"""How torch, torchvision and torch's compiler are imported: fast, whatever is installed, and only where needed."""
