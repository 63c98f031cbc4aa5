"""When each stage does what: one small file for each family of operation lists. No torch here."""

from pipetrain.engine.schedules.base import ListSchedule, Schedule
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.placement import Placement
from pipetrain.engine.schedules.replicas import Replicas

__all__ = ["Kind", "ListSchedule", "Operation", "Placement", "Replicas", "Schedule"]
