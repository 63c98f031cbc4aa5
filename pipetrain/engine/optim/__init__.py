"""A stage's optimizer, its learning rate, and the step that it would take next."""
