"""Which layers form which stage: cost estimates, partition rules, and the plan of a run."""
