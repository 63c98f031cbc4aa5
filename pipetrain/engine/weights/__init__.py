"""Weight versions, and what a method makes of them."""
