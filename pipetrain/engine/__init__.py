"""Pipeline-parallel training as a library: schedules, methods, weights, optimizers, stages, executors, losses, a loader.

Needs torch and numpy alone, and imports no other room of pipetrain.
"""
