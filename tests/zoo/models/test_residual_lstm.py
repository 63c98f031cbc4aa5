"""The Residual LSTM, against its equations and on padded texts."""

import torch

from pipetrain.zoo.models import residual_lstm

IDS = torch.randint(1, 20, (4, 7), generator=torch.Generator().manual_seed(0))


def test_chain_computes_what_the_module_does():
    chain = residual_lstm.build(20, 6, embedding=8, hidden=12, layers=2)
    chain.module.eval()
    assert torch.equal(chain(IDS), chain.module(IDS))
    assert chain(IDS).shape == (4, 6)
    assert len(chain) == 4


def test_cell_follows_the_equations_of_the_paper():
    torch.manual_seed(0)
    cell, x = residual_lstm.ResidualLstmCell(3, 3), torch.randn(2, 2, 3)
    with torch.no_grad():
        cell.peepholes.normal_()
    w, b, u = cell.from_input.weight, cell.from_input.bias, cell.from_hidden.weight
    h = c = torch.zeros(2, 3)
    for t in range(2):
        i, f, o, g = (x[:, t] @ w.T + h @ u.T + b).split(3, dim=1)
        i, f = torch.sigmoid(i + cell.peepholes[0] * c), torch.sigmoid(f + cell.peepholes[1] * c)
        c = f * c + i * torch.tanh(g)
        h = torch.sigmoid(o + cell.peepholes[2] * c) * (torch.tanh(c) @ cell.projection.weight.T + x[:, t])
        torch.testing.assert_close(cell(x)[:, t], h)


def test_padding_behind_a_text_changes_no_score():
    chain = residual_lstm.build(20, 6, embedding=8, hidden=12, layers=2)
    chain.module.eval()
    padded = torch.cat([IDS, torch.zeros(4, 3, dtype=torch.long)], dim=1)
    torch.testing.assert_close(chain(padded), chain(IDS))
