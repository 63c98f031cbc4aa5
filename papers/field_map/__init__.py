"""The map of the field: the final loss of every method against the depth of the pipeline."""
