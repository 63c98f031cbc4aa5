"""The profile that a command plans with or shows: a stored one, or what is measured now."""

from pathlib import Path

from pipetrain.config.settings import Settings
from pipetrain.planner.profile import Profile, read


def chosen_profile(settings: Settings) -> Profile:
    """The profile in the file that `profile` names, else that of the model that the settings choose.

    Raises:
        ConfigError: the file is no profile, or the model or its data cannot be built.
    """
    if settings.profile is not None:
        return read(Path(settings.profile))
    # from here on torch is needed, which takes seconds to import
    from pipetrain.run.profiling.profile import profile_of

    return profile_of(settings)
