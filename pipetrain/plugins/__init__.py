"""Parts that no other module imports: choices in YAML name them. None imports another."""
