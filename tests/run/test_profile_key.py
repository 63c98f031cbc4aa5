import sys

import pytest
import torch
from support.small_model import build
from support.worker_pool import settings

from pipetrain.losses import CrossEntropy
from pipetrain.run.layer_times import Measuring
from pipetrain.run.profile_key import profile_key

MINIBATCH = ((torch.zeros(4, 1, 8, 8),), (torch.zeros(4, dtype=torch.long),))


def key(minibatch=MINIBATCH, channels=1, how=None, **changes):
    how = how or Measuring(CrossEntropy())
    return profile_key(settings("gpipe", **changes), build(channels, 4), minibatch, how)


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(channels=2),
        lambda: key(((torch.zeros(8, 1, 8, 8),), MINIBATCH[1])),
        lambda: key(how=Measuring(CrossEntropy(), threads=2)),
        lambda: key(how=Measuring(CrossEntropy(), num_microbatches=2)),
        lambda: key(model={"untie": True}),
        lambda: key(loss={"_target_": "pipetrain.losses.TokenCrossEntropy"}),
        lambda: key(dataset={"classes": 5}),
        lambda: key(dataset={"workers": 1}),
    ],
    ids=["layers", "input shape", "threads", "microbatches", "model options", "loss", "data set", "readers"],
)
def test_a_profile_depends_on(other):
    assert other() != key()


def test_a_profile_does_not_depend_on_how_long_a_run_trains_and_with_which_method():
    assert key(train={"epochs": 9}, seed=7) == key()


def test_a_profile_depends_on_the_code_of_the_model(monkeypatch, tmp_path):
    before, code = key(), tmp_path / "small_model.py"
    code.write_text("changed = True")
    monkeypatch.setattr(sys.modules["support.small_model"], "__file__", str(code))
    assert key() != before
