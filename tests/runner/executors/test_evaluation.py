"""The loss and metrics of an evaluation set in runs."""

import pytest
import torch
from support import small_model
from support.worker_pool import distributed, job, simulated
from torch import nn

from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.components.data import build_data


@pytest.mark.parametrize(
    "carry_out",
    [
        pytest.param(simulated, id="simulated"),
        pytest.param(lambda made: distributed([made])[0], id="distributed", marks=pytest.mark.slow),
    ],
)
def test_run_weighs_all_samples_of_ragged_evaluation_equally(tmp_path, carry_out):
    made = job(tmp_path / "run", "pipedream", 2, eval={"batch_size": 7})  # of ten samples
    final = carry_out(made)["final"]
    samples = build_data(made.settings).dataset.eval
    x, y = (torch.stack(each) for each in zip(*[samples[i] for i in range(len(samples))], strict=True))
    chain = small_model.build(channels=1, classes=4)
    chain.module.load_state_dict(contents.model_state(store.newest_undamaged(str(made.run))))
    for layer in chain.layers:
        layer.eval()
    with torch.no_grad():
        scores = chain(x)
    assert final["loss"] == pytest.approx(nn.functional.cross_entropy(scores, y).item(), rel=1e-6)
    assert final["top1"] == pytest.approx(100 * (scores.argmax(1) == y).float().mean().item())
