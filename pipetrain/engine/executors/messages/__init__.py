"""Communication of processes: tensors between neighbors, values over the control group."""
