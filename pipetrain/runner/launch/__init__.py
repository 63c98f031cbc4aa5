"""The worker processes of a run: started, watched, and their end explained."""
