"""The commands that compare runs and draw what they did."""
