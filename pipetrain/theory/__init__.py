"""ClosedForm forms, computed before or without any run."""
