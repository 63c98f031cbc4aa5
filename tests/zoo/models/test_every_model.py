"""Every model at its default size, as the command trains it: both executors give equal bits. `make test-exhaustive`."""

import pytest
from support.cli import run, summary

from pipetrain.runner.config.choices import names_of

STEPS = 20
BATCH = 4
"""Samples of a minibatch, so that a run takes seconds; the model is uncut."""
OPTIONS = {"gpt2": ["model.untie=true"]}
"""What a model needs, where its default is for synchronous methods."""
RATES = {"resnet152": 1e-6}
"""Where 1e-4 is too large: before PipeOptim's first updates there is no momentum to predict by, and 152 layers of batch
norm over so few samples multiply what has changed between the forward of a minibatch and its backward."""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("method", ["pipedream", "pipeoptim"])
@pytest.mark.parametrize("model", names_of("model"))
def test_model_at_default_size_has_equal_bits(tmp_path, model, method, stages):
    results = {}
    for executor in ("distributed", "simulated"):
        run(
            tmp_path / executor,
            f"executor={executor}",
            f"model={model}",
            *OPTIONS.get(model, []),
            f"method={method}",
            f"partition.stages={stages}",
            "threads=1",
            f"train.batch_size={BATCH}",
            "train.microbatches=1",
            f"optimizer.lr={RATES.get(model, 1e-4)}",  # that of the defaults is for larger minibatches
            f"train.max_steps={STEPS}",
            f"dataset.limit={STEPS * BATCH}",
            "eval.every_epochs=0",
            "checkpoint.every_epochs=0",
            timeout=3600,
        )
        result = summary(tmp_path / executor)
        assert (result["status"], result["steps"], result["stages"]) == ("completed", STEPS, stages)
        results[executor] = result["weights_sha256"], result["loss_sha256"]
    assert results["distributed"] == results["simulated"]
