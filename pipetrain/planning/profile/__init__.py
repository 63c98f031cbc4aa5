"""Cost of each layer, measured or estimated, and the states at which a graph can be cut."""
