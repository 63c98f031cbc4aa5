"""An LSTM's recurrence with some of its recurrent weights dropped (Merity et al. 2018, section 2)."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override


class DroppedRecurrence(torch.autograd.Function):
    """Hidden states of an LSTM whose recurrent weights are multiplied by a mask, the same at each position.

    Under autograd alone the product of weights and mask would be saved, which belongs to the weights of the forward.
    Here the weights themselves are saved and multiplied in the backward, which thus reads whatever version of them it
    is given.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, mask: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The hidden states (n, positions, H), and the last cell state (n, H).

        Args:
            ctx: autograd's.
            gates: the input's part of the gates' arguments, biases included (n, positions, 4H), in torch's order.
            weight: recurrent (4H, H).
            mask: what it is multiplied by.
            hidden: before the first position (n, H), a constant.
            cell: likewise.
        """
        recurrent = (weight * mask).t()
        hiddens, cells, activated = [hidden], [cell], []
        for at_position in gates.unbind(1):
            i, f, g, o = (at_position + hiddens[-1] @ recurrent).chunk(4, dim=1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            cells.append(f * cells[-1] + i * g)
            hiddens.append(o * cells[-1].tanh())
            activated.append(torch.stack([i, f, g, o]))
        states = torch.stack(hiddens)
        ctx.save_for_backward(weight, mask, states, torch.stack(cells), torch.stack(activated))
        ctx.mark_non_differentiable(cells[-1])
        return states[1:].transpose(0, 1).contiguous(), cells[-1]

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Of the gates' arguments and the recurrent weights."""
        weight, mask, states, cells, activated = ctx.saved_tensors
        recurrent, of_states = weight * mask, gradients[0].unbind(1)
        of_hidden = of_cell = torch.zeros_like(states[0])
        of_gates = []
        for position in reversed(range(len(of_states))):
            i, f, g, o = activated[position]
            of_hidden = of_hidden + of_states[position]
            squashed = cells[position + 1].tanh()
            of_cell = of_cell + of_hidden * o * (1 - squashed * squashed)
            of_arguments = torch.cat(
                [
                    of_cell * g * i * (1 - i),
                    of_cell * cells[position] * f * (1 - f),
                    of_cell * i * (1 - g * g),
                    of_hidden * squashed * o * (1 - o),
                ],
                dim=1,
            )
            of_gates.append(of_arguments)
            of_hidden, of_cell = of_arguments @ recurrent, of_cell * f
        of_gates.reverse()
        of_weight = torch.cat(of_gates).t() @ states[:-1].flatten(0, 1)
        return torch.stack(of_gates, dim=1), of_weight * mask, None, None, None
