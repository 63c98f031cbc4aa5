"""When each stage does what: operation lists, their validation, and what can be read off them. No torch here."""

from pipetrain.schedules.base import Schedule
from pipetrain.schedules.operation import Kind, Operation
from pipetrain.schedules.placement import Placement
from pipetrain.schedules.readings import Graph, Moment, Place, Read, Readings, readings
from pipetrain.schedules.recomputation import Spans

__all__ = [
    "Graph", "Kind", "Moment", "Operation", "Place", "Placement", "Read", "Readings", "Schedule", "Spans", "readings",
]  # fmt: skip
