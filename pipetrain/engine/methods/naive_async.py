"""No mitigation at all: the control that every comparison of asynchronous methods needs."""

from typing import ClassVar

from pipetrain.engine.methods.base import Method
from pipetrain.engine.schedules.base import Family


class NaiveAsync(Method):
    """The newest weights in F, and in B the newest ones of that time, which may be newer."""

    name: ClassVar[str] = "naive_async"
    family: ClassVar[Family] = Family.CONTINUOUS
