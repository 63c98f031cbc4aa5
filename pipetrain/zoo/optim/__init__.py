"""Optimizers beside torch's, and learning-rate schedules."""
