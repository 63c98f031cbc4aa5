"""The callbacks of a run: its trackers, then those of `callbacks`."""

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

from pipetrain.data.libraries.imports import require
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.checks import TRACKERS
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.suggestions import did_you_mean
from pipetrain.runner.tracking.callbacks import METHODS, Callback

_EXTRAS = ("mlflow", "wandb")
"""Trackers that are the name of an optional package and of the extra that installs it."""


def check_callbacks(trackers: Sequence[str], callbacks: Sequence[Target]) -> None:
    """Raises a ConfigError if a tracker's package is missing, or a target is no callback or refuses its options."""
    for target in callbacks:
        _check(target)
    for name in trackers:
        if name in _EXTRAS:
            require(f"log.to=[{name}]", (name,), name)
        _check_installed(name)


def _check_installed(name: str) -> None:
    """Checks that a tracker's module is there, without importing it, which takes a while."""
    module = TRACKERS[name].rpartition(".")[0]
    with suppress(ModuleNotFoundError):
        if find_spec(module) is not None:
            return
    raise ConfigError(f"log.to=[{name}]: pipetrain is installed without {module}; leave {name} out")


def _check(target: Target) -> None:
    target.check()
    found, named = target.located(), target.setting
    kind = type(found) if isinstance(found, Callback) else found
    if not (isinstance(kind, type) and issubclass(kind, Callback)):
        raise ConfigError(f"{named}: must be a subclass of pipetrain.Callback")
    if all(getattr(kind, name) is getattr(Callback, name) for name in METHODS):
        wrong = next((name for name in vars(kind) if name.startswith("on_")), "")
        meant = did_you_mean(wrong, METHODS) if wrong else ""
        raise ConfigError(f"{named}: overrides no method of pipetrain.Callback, such as on_step{meant}")
    missing = [name for name in target.parameters(required=True) if name not in target.options]
    if missing:
        options = ", ".join(f"{name}: VALUE" for name in missing)
        raise ConfigError(f"{named}: needs {', '.join(missing)}; write {{_target_: {target.path}, {options}}}")


def tracker(name: str) -> Target:
    """The tracker of this name in `log.to`."""
    return Target("log.to", TRACKERS[name], {})


def build_callbacks(trackers: Sequence[str], callbacks: Sequence[Target]) -> dict[str, Callback]:
    """The callbacks by the setting that names each; raises a ConfigError if a constructor raised an exception."""
    targets = {f"log.to=[{name}]": tracker(name) for name in trackers}
    targets |= {target.setting: target for target in callbacks}
    return {name: target.build() for name, target in targets.items()}
