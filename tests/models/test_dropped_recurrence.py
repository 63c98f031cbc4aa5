"""An LSTM's recurrence with dropped weights: torch's LSTM where none is dropped, and gradients by hand."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pipetrain.models.dropped_recurrence import DroppedRecurrence

ROWS, POSITIONS, WIDTH = 3, 4, 5


def arguments():
    torch.manual_seed(0)
    gates = torch.randn(ROWS, POSITIONS, 4 * WIDTH, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4 * WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = F.dropout(torch.ones_like(weight), 0.5).detach()
    hidden, cell = torch.randn(2, ROWS, WIDTH, dtype=torch.float64)
    return gates, weight, mask, hidden, cell


def test_recurrence_and_its_gradients_are_those_of_the_lstm_of_torch_with_the_masked_weights():
    _, _, _, hidden, cell = arguments()
    lstm = nn.LSTM(2, WIDTH, batch_first=True, dtype=torch.float64)
    x = torch.randn(ROWS, POSITIONS, 2, dtype=torch.float64)
    mask, weights = F.dropout(torch.ones_like(lstm.weight_hh_l0), 0.5), list(lstm.parameters())
    gates = F.linear(x, lstm.weight_ih_l0, lstm.bias_ih_l0) + lstm.bias_hh_l0
    ours, last = DroppedRecurrence.apply(gates, lstm.weight_hh_l0, mask, hidden, cell)
    masked = {"weight_hh_l0": lstm.weight_hh_l0 * mask}
    theirs, (_, wanted) = functional_call(lstm, masked, (x, (hidden[None], cell[None])))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(last, wanted[0])
    torch.testing.assert_close(*(torch.autograd.grad((each**2).sum(), weights) for each in (ours, theirs)))


def test_backward_reads_the_weights_that_it_is_given():
    gates, weight, mask, hidden, cell = arguments()
    others = torch.randn_like(weight)

    def gradient(given):
        """Of the gates' arguments at both positions, for a loss of the second hidden state."""
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: "weight" if tensor.data_ptr() == weight.data_ptr() else tensor,
            lambda saved: given if isinstance(saved, str) else saved,
        ):
            hiddens, _ = DroppedRecurrence.apply(gates, weight, mask, hidden, cell)
        return torch.autograd.grad(hiddens[:, 1].sum(), gates)[0].unbind(1)[:2]

    (first, second), (other_first, other_second) = gradient(weight), gradient(others)
    assert torch.equal(second, other_second)
    assert not torch.allclose(first, other_first)
