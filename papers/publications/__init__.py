"""The five papers, a module each."""
