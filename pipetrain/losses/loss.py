"""What a loss is."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[..., Tensor]
"""(output, target) -> the mean loss, a scalar. It may also have

- `count(target)`: number of items that the mean runs over; by default the number of samples;
- `metrics(output, target)`: name -> number of hits, from 0 to that count, by which it is divided;
- `log_loss(output, target)`: the mean negative log-likelihood; evaluations report exp of it as `perplexity`;
- `unit`: "tokens" if `count` counts tokens; the run then reports tokens per second.
"""


def on_device(loss: Loss, device: torch.device) -> Loss:
    """The loss with its buffers, where it has any, on `device`."""
    return loss.to(device) if isinstance(loss, nn.Module) else loss
