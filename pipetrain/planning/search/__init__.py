"""The search for the best pipeline."""
