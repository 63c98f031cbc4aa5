"""The value of a metric, and how it was computed."""

from typing import NamedTuple


class MetricValue(NamedTuple):
    """A metric.

    Attributes:
        value: its value.
        signature: how it was computed: the library's version and settings.
    """

    value: float
    signature: str
