"""Names of a checkpoint's tensors, there and back."""

import pytest

from pipetrain.run.checkpoint_names import Kind, TensorName


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (TensorName(Kind.MODEL, "conv.weight"), "model.conv.weight"),
        (TensorName(Kind.OPTIMIZER, "conv.weight", "exp_avg"), "optimizer.conv.weight/exp_avg"),
        (TensorName(Kind.STATISTIC, "conv.weight", "update_average"), "statistic.conv.weight/update_average"),
        (TensorName(Kind.HISTORY, "losses"), "run.losses"),
        (TensorName(Kind.CARRIED, "layers.3", "1"), "carried.layers.3/1"),
        (TensorName(Kind.OPTIMIZER, "a/b.weight", "step"), "optimizer.a/b.weight/step"),
    ],
)
def test_name_is_read_back_as_it_was_written(name, text):
    assert str(name) == text
    assert TensorName.parse(text) == name
