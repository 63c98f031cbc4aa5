"""The AWD-LSTM: its layers, its dropout, and PipeDream's size."""

import pytest
import torch

from pipetrain.errors import ConfigError
from pipetrain.models import awd_lstm

IDS = torch.randint(0, 20, (4, 7), generator=torch.Generator().manual_seed(0))


def test_chain_computes_what_the_module_does():
    chain = awd_lstm.build(20, embedding=8, hidden=12, layers=2)
    chain.module.eval()
    assert torch.equal(chain(IDS), chain.module(IDS))
    assert chain(IDS).shape == (4, 7, 20)
    assert len(chain) == 4


def test_widths_of_pipedreams_model_give_the_weights_that_its_paper_says():
    with torch.device("meta"):
        module = awd_lstm.build(10_000, embedding=400, hidden=1370, layers=6).module
    gigabytes = sum(parameter.nbytes for parameter in module.parameters()) / 1e9
    assert round(gigabytes, 2) == 0.41


def test_tied_decoder_has_the_weight_of_the_embedding():
    chain = awd_lstm.build(20, embedding=8, hidden=12, layers=2, tied=True)
    assert chain.module.decoder.weight is chain.module.embedding.weight
    assert chain(IDS).shape == (4, 7, 20)


def test_dropout_drops_the_same_features_at_all_positions():
    torch.manual_seed(0)
    dropped = awd_lstm.LockedDropout(0.5)(torch.ones(2, 5, 30)) == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0 < dropped[:, 0].float().mean() < 1
    assert not torch.equal(dropped[0], dropped[1])


def test_dropped_word_is_dropped_wherever_it_stands():
    torch.manual_seed(0)
    embedded = awd_lstm.WordEmbedding(20, 6, word_dropout=0.5, dropout=0.0)(IDS)
    gone = {int(token) for token in IDS.flatten() if not embedded[token == IDS].any()}
    left = {int(token) for token in IDS.flatten() if embedded[token == IDS].all(1).all()}
    assert gone
    assert left
    assert gone | left == set(IDS.flatten().tolist())


def test_weight_drop_changes_the_training_alone():
    chain = awd_lstm.build(20, 8, 12, 2, dropout=0, input_dropout=0, hidden_dropout=0, weight_drop=0.5)
    assert not torch.equal(chain(IDS), chain(IDS))
    chain.module.eval()
    assert torch.equal(chain(IDS), chain(IDS))


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"hidden": 0}, {"dropout": 1.0}, {"weight_drop": -0.1}])
def test_setting_out_of_its_range_is_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"model.{name}="):
        awd_lstm.build(20, **wrong)
