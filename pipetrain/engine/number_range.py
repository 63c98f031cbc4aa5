"""The numbers that a setting may have."""

import math
from dataclasses import dataclass

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, as_configured


@dataclass(frozen=True)
class NumberRange:
    """Finite numbers from `least` to `most`; `least_too` and `most_too` say if these are in the range themselves."""

    least: float = 0
    most: float = math.inf
    least_too: bool = True
    most_too: bool = False

    @override
    def __str__(self) -> str:
        begin = f"{'of at least' if self.least_too else 'above'} {self.least}"
        end = f" and {'at most' if self.most_too else 'below'} {self.most}" if math.isfinite(self.most) else ""
        return f"a number {begin}{end}"

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        above = value >= self.least if self.least_too else value > self.least
        return above and (value <= self.most if self.most_too else value < self.most)

    def check(self, setting: str, value: object, otherwise: str = "") -> None:
        """Checks the value of a setting, given its name on the command line.

        `otherwise` says what works as well, such as "or null for none".

        Raises:
            ConfigError: the value is no number, or not in the range.
        """
        if value not in self:
            works = f"must be {self}" + (f", {otherwise}" if otherwise else "")
            raise ConfigError(f"{setting}={as_configured(value)}: {works}")


POSITIVE = NumberRange(least_too=False)
NOT_NEGATIVE = NumberRange()
SHARE = NumberRange(0, 1, most_too=True)
BELOW_ONE = NumberRange(0, 1)
