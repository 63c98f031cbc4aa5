"""A model as a chain of layers, and the weights that its layers share."""
