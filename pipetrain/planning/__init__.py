"""Assignment of layers to stages: cost estimates, partition rules, and the plan of a run."""
