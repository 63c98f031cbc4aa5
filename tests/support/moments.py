"""A stage in the middle of a pipeline, and what it knows at a forward and at the backward of the same microbatch."""

import torch
from torch import nn

from pipetrain.engine.program.weight_reads import ReadContext, StageContext
from pipetrain.engine.schedules.operation import backward, forward

CONTEXT = StageContext(stage=1, num_stages=4, num_microbatches=1, delay=2, entry_delay=3)
MOMENT = ReadContext(CONTEXT, forward(4), newest=2, entry=1, updates_until_backward=2, minibatch_of_run=4)
LATER = ReadContext(CONTEXT, backward(4), newest=4, entry=1, updates_until_backward=2, minibatch_of_run=4)


def parameters():
    """Something for an optimizer to be made with."""
    return [nn.Parameter(torch.ones(2))]


def groups_of_two(**options):
    """Two of torch's parameter groups, the second with these options."""
    return [{"params": parameters()}, {"params": parameters(), **options}]
