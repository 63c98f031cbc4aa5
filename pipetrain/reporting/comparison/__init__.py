"""Which method is best for a model on given machines: tuned, simulated over seeds, and predicted in time and memory."""
