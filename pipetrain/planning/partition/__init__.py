"""Rules that cut a layer chain into stages."""
