"""Replicas of a stage: their process groups, and gradients averaged over them."""
