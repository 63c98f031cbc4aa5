"""What can be wrong with a run whose parts can all be built, and what the user should know of it."""

from collections.abc import Callable

from pipetrain.config.settings import Settings
from pipetrain.run.checks import data, model, pipeline, replicas
from pipetrain.run.components import Components

Check = Callable[[Settings, Components], list[str]]
"""Returns what the user should know; raises ConfigError for what cannot work."""

CHECKS: tuple[Check, ...] = (*model.CHECKS, *data.CHECKS, *replicas.CHECKS, *pipeline.CHECKS)
