"""Names of what `StalenessMeter` measures of a stage; a module without torch, for those who only read them."""

DISTANCES = ("weight_drift", "forward_error", "backward_error", "weight_discrepancy")
"""Norms of W_F - W_B, Ŵ_F - W_B, Ŵ_B - W_B and Ŵ_F - Ŵ_B: see `StalenessMeter`."""
RELATIVE = "relative_"
"""Prefix of a distance divided by the norm of W_B."""
COSINE = "gradient_cosine"
"""Cosine between the gradient applied and the gradient at the weights that it updates."""
QUANTITIES = (
    *DISTANCES,
    *(f"{RELATIVE}{name}" for name in DISTANCES),
    "weight_norm",
    "gradient_norm",
    "update_norm",
    COSINE,
)
"""All of them. The norms are of W_B, of the gradient applied, and of its update."""
