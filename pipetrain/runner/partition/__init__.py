"""Rules that cut a model into stages by estimated costs, and the plan of a run."""
