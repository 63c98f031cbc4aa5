"""What a loss is."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[..., Tensor]
"""(output, target) -> the mean loss, a scalar. It may also have

- `count(target)`: what the mean runs over; the samples, unless it says so;
- `metrics(output, target)`: name -> hits, whole numbers from 0 to that count, which they are divided by;
- `log_loss(output, target)`: the mean negative log-likelihood, whose exp an evaluation reports as `perplexity`;
- `unit`, "tokens" where that is what it counts: the run then reports tokens per second.
"""


def on_device(loss: Loss, device: torch.device) -> Loss:
    """The loss with its buffers, where it has any, on `device`."""
    return loss.to(device) if isinstance(loss, nn.Module) else loss
