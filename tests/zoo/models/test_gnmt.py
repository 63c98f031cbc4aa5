import torch

from pipetrain.zoo.models.gnmt import Attention, BothWays, build, encode_both_ways


def test_gnmt8_has_nvidia_parameters_except_attention_scale():
    with torch.device("meta"):
        chain = build(31_800, 31_800, shared_embeddings=True)
    assert sum(weight.numel() for weight in chain.module.parameters()) == 159_605_817 - 1


def test_gnmt16_has_four_more_lstms_on_each_side():
    with torch.device("meta"):
        eight, sixteen = (build(100, 100, layers=layers) for layers in (8, 16))
    counts = [sum(weight.numel() for weight in chain.module.parameters()) for chain in (eight, sixteen)]
    encoder, decoder = 4 * 1024 * (1024 + 1024) + 8 * 1024, 4 * 1024 * (2048 + 1024) + 8 * 1024
    assert counts[1] - counts[0] == 4 * encoder + 4 * decoder
    assert (len(eight), len(sixteen)) == (11, 19)


def test_residual_connections_begin_at_third_lstm_of_each_side():
    chain = build(10, 10, layers=8, width=4)
    residual = [getattr(layer, "residual", None) for layer in chain.layers]
    assert residual == [None, False, False, True, True, None, False, False, True, True, None]


def test_first_lstm_reads_backward_from_last_token():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    x = torch.randn(2, 5, 3)
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    out = encode_both_ways(lstm, x, padding)
    torch.testing.assert_close(out[0], lstm(x[:1])[0][0])
    torch.testing.assert_close(out[1, :2], lstm(x[1:, :2])[0][0])
    assert not out[1, 2:].any()


def test_directions_by_themselves_compute_as_packed_samples():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    layer, x = BothWays(lstm, torch.nn.Dropout(0)), torch.randn(4, 6, 3, requires_grad=True)
    padding = torch.arange(6) >= torch.tensor([[6], [1], [4], [5]])
    found = []
    for y in (encode_both_ways(lstm, x, padding), layer.in_parts(x, padding)):
        found.append([y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(found[1], found[0])
    assert len(found[0]) == 2 + 8
    assert not found[1][0][padding].any()


def test_attention_is_the_additive_formula():
    torch.manual_seed(0)
    attention = Attention(4)
    query, memory = torch.randn(1, 1, 4), torch.randn(1, 3, 4)
    padding = torch.tensor([[False, False, True]])
    keys = [attention.key(memory[0, i]) for i in range(2)]
    scores = torch.stack([attention.score(torch.tanh(attention.query(query[0, 0]) + key))[0] for key in keys])
    expected = scores.softmax(0) @ memory[0, :2]
    torch.testing.assert_close(attention(query, memory, padding)[0, 0], expected)


def test_context_of_the_first_decoder_lstm_reaches_all_others():
    torch.manual_seed(0)
    chain = build(10, 10, layers=8, width=4, dropout=0.0)
    tensors = (torch.tensor([[4, 2]]), torch.tensor([[1, 5]]))
    for layer in chain.layers[:7]:
        tensors = layer(*tensors)
    context = tensors[1]
    for layer in chain.layers[7:9]:
        tensors = layer(*tensors)
        assert tensors[1] is context
    assert len(chain.layers[9](*tensors)) == 1


def _spread_over_sources(width):
    """Standard deviation of the encoder's output at the same positions of different sentences."""
    torch.manual_seed(0)
    model = build(500, 500, width=width, dropout=0.0).module
    memory = model.begin(torch.randint(4, 500, (32, 8)))[0]
    return memory.std(0).mean().item()


def test_encoder_tells_words_apart_as_well_at_any_width():
    narrow, wide, nvidia = map(_spread_over_sources, (64, 256, 1024))
    assert 0.8 * nvidia < narrow < 1.25 * nvidia
    assert 0.8 * nvidia < wide < 1.25 * nvidia


def test_initial_weights_at_width_of_nvidia_are_within_its_spread():
    model = build(50, 50).module
    for weight in model.parameters():
        assert 0.099 < weight.abs().max() <= 0.1
