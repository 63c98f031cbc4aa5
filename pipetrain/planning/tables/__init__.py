"""Tables and figures of profiles, plans and predictions."""
