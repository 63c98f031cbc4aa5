"""A method, a schedule, a model and a data set for pipetrain."""
