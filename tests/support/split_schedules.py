"""Schedules with their backwards split, for any schedule of one stage in each process."""

from dataclasses import fields

from pipetrain.engine.schedules import Kind
from pipetrain.engine.schedules.operation import weight_gradient


def splitting(schedule):
    """The schedule, but each stage r has a W for each B, r backwards later or before the update."""

    class Splitting(type(schedule)):
        name = f"split_{schedule.name}"
        splits_backward = True

        def operations(self, r, D, N, M):
            operations, behind = [], []
            for op in super().operations(r, D, N, M):
                if op.kind is Kind.UPDATE:
                    operations += behind
                    behind.clear()
                operations.append(op)
                if op.kind is Kind.BACKWARD:
                    behind.append(weight_gradient(op.minibatch, op.microbatch))
                    operations += [behind.pop(0)] if len(behind) > r else []
            return operations

    return Splitting(**{each.name: getattr(schedule, each.name) for each in fields(schedule) if each.init})
