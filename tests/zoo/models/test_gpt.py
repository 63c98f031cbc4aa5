"""Decoder-only Transformers."""

import pytest
import torch

from pipetrain.data.libraries import torchvision_import
from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.config.choices import section
from pipetrain.zoo.models import gpt


def small(**options) -> LayerChain:
    torch.manual_seed(0)
    return gpt.build(97, 16, layers=2, width=16, heads=2, **options)


def test_gpt2_has_the_published_number_of_parameters():
    options = {name: value for name, value in section("model", "gpt2").items() if name != "_target_"}
    with torch.device("meta"):
        chain = gpt.build(**options)
    assert sum(parameter.numel() for parameter in chain.module.parameters()) == 124_439_808


@pytest.mark.slow
def test_weights_load_into_transformers_gpt2_with_equal_scores():
    torchvision_import.install()
    transformers = pytest.importorskip("transformers")
    chain = small(tied=True, dropout=0.1)
    size = transformers.GPT2Config(vocab_size=97, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    theirs = transformers.GPT2LMHeadModel(size).eval()
    theirs.load_state_dict(chain.module.state_dict())
    ids = torch.randint(97, (3, 12))
    with torch.no_grad():
        torch.testing.assert_close(chain.module.eval()(ids), theirs(ids).logits)


def test_layers_one_after_the_other_compute_the_model():
    chain, ids = small(), torch.randint(97, (3, 12))
    assert torch.equal(chain(ids), chain.module(ids))
    assert chain.labels == ["embedding", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "lm_head"]
    assert chain.weight_layers() == list(range(6))


def test_scores_of_a_position_depend_on_no_later_token():
    chain, ids = small(), torch.randint(97, (1, 12))
    changed = ids.clone()
    changed[0, 7:] = 5
    assert torch.allclose(chain(ids)[:, :7], chain(changed)[:, :7], atol=1e-6)
    assert not torch.allclose(chain(ids)[:, 7:], chain(changed)[:, 7:])


def test_tied_head_is_the_embedding():
    assert small(tied=True).tied() == [(0, 5)]
    assert small().tied() == []
