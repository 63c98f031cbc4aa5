"""What each layer costs, measured or estimated, and the states at which a graph can be cut."""
