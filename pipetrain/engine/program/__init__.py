"""Analysis of operation lists before anything runs. Imports no torch."""
