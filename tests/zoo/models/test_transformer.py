import pytest
import torch
from torch import nn

from pipetrain.engine.models.weight_units import weight_units
from pipetrain.zoo.models.transformer import build, sinusoids

IWSLT = {"width": 512, "feedforward": 1024, "heads": 4}


def sized(*args, **options):
    with torch.device("meta"):
        return build(*args, **options)


@pytest.mark.parametrize(("shared", "parameters"), [(None, 42_864_640), ("target", 39_469_056)])
def test_iwslt_form_has_the_parameters_that_fairseq_reports(shared, parameters):
    # transformer_iwslt_de_en with the 8,848 and 6,632 tokens of its prepared IWSLT14
    chain = sized(8848, 6632, **IWSLT, shared_embeddings=shared)
    assert sum(weight.numel() for weight in chain.module.parameters()) == parameters


def test_finegrained_units_are_as_many_as_pipemare_has_stages():
    # section 4.1 and table 4: one weight and its bias each, for IWSLT14 and, with one embedding, for WMT17
    assert len(weight_units(sized(8848, 6632, **IWSLT))) == 93
    assert len(weight_units(sized(8848, 8848, shared_embeddings="all"))) == 91


def test_base_form_has_one_layer_per_sublayer_embedding_and_head():
    chain = sized(100, 100)
    assert len(chain) == 1 + 6 * 2 + 1 + 6 * 3 + 1
    assert chain.labels[1:3] == ["encoder.layers.0.self_attn", "encoder.layers.0.linear1"]


@torch.no_grad()
def test_weights_load_into_torch_transformer_with_equal_outputs():
    torch.manual_seed(0)
    ours = build(12, 14, layers=2, width=16, feedforward=24, heads=4).module.eval()
    theirs = nn.Transformer(
        custom_encoder=nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2),
        custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 24, batch_first=True), 2),
        d_model=16,
        nhead=4,
        batch_first=True,
    ).eval()
    blocks = {name: value for name, value in ours.state_dict().items() if name.startswith(("encoder", "decoder"))}
    theirs.load_state_dict(blocks)
    source, target = torch.tensor([[4, 5, 2]]), torch.tensor([[1, 7, 8, 9]])
    hidden = theirs(
        ours.source_embedding(source),
        ours.target_embedding(target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(4),
    )
    torch.testing.assert_close(ours.head(hidden), ours(source, target))


def test_shared_weights_are_one_under_several_names():
    module = sized(10, 10, **IWSLT, shared_embeddings="all").module
    assert module.head.weight is module.target_embedding.weight is module.source_embedding.weight
    sized(10, 10, **IWSLT, shared_embeddings="target", joint_vocabulary=False)


def test_initial_weights_match_fairseq_widths_and_zero_padding():
    torch.manual_seed(0)
    module = build(400, 300, layers=1, width=64, feedforward=96, heads=4).module
    for weight in (module.source_embedding.weight, module.target_embedding.weight, module.head.weight):
        assert weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert not module.source_embedding.weight[0].any()
    assert module.encoder.layers[0].linear1.weight.abs().max().item() == pytest.approx((6 / 160) ** 0.5, rel=0.05)


def test_positions_are_sinusoids_of_geometric_frequencies():
    table = sinusoids(7, torch.zeros(6))
    rates = [1, 10_000**-0.5, 10_000**-1.0]
    for position in range(7):
        angles = torch.tensor([position * rate for rate in rates])
        torch.testing.assert_close(table[position], torch.cat([angles.sin(), angles.cos()]))
    assert sinusoids(3, torch.zeros(5)).shape == (3, 5)
