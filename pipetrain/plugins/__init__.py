"""Parts that a configuration names and no module imports: torch's own schedules, and trackers of optional packages.

They import the engine and the runner, and not each other.
"""
