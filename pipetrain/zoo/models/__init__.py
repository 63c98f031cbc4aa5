"""The models, by family, each as a chain of layers that can be cut into stages."""
