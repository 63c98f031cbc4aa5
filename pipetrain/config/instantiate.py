"""A class or function that the configuration names by its path, and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from pipetrain.errors import ConfigError, one_line
from pipetrain.failure import described

TARGET = "_target_"


@dataclass(frozen=True)
class Target:
    """An open section of the configuration: a class or function, ours or the user's own, and its options.

    Attributes:
        section: where it stands in the configuration, such as `model`.
        path: of the class or function, such as `mylib.build`.
        options: the keyword arguments that the configuration gives.
    """

    section: str
    path: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, section: str, content: Mapping[str, Any]) -> Self:
        """The target that a section names.

        Raises:
            ConfigError: it names none.
        """
        if TARGET not in content:
            raise ConfigError(f"{section}={dict(content)}: names no class; {section}.{TARGET} is missing")
        return cls(section, content[TARGET], {key: value for key, value in content.items() if key != TARGET})

    def build(self, *args: Any, **extra: Any) -> Any:
        """What the target returns for its options; `extra` ones come on top.

        Raises:
            ConfigError: the target does not exist, does not take these options, or refuses one.
        """
        try:
            return instantiate({TARGET: self.path, **self.options, **extra}, *args, _convert_="all")
        except InstantiationException as error:
            cause = error.__cause__
            if isinstance(cause, ConfigError):
                raise cause from None
            reason = described(cause) if cause is not None else one_line(error)
            raise ConfigError(f"{self.section}.{TARGET}={self.path}: {reason}") from error
