"""The papers' claims beside what pipetrain measures."""
