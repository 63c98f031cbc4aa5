"""How processes talk: tensors between neighbors, values over the control group."""
