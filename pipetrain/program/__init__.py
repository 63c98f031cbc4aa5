"""What can be read off operation lists before anything runs. No torch here."""
