"""Runs with schedulers of torch."""

import pytest
from support.cli import TINY, run_here, summary

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.composition import composed

_PATH = "torch.optim.lr_scheduler."


def test_only_what_takes_an_optimizer_is_a_scheduler_of_torch():
    words = ["lr_schedule=custom", f"lr_schedule._target_={_PATH}StepLR", "+lr_schedule.step_size=3"]
    settings = composed(words)
    settings.check_targets()
    assert dict(settings.torch_scheduler.options) == {"step_size": 3}
    assert settings.choices["lr_schedule"] == "StepLR"
    assert composed(["lr_schedule=cosine"]).torch_scheduler is None
    with pytest.raises(ConfigError, match=r"did you mean lr_schedule\.step_size\?"):
        composed([*words[:2], "+lr_schedule.step_sizes=3"]).check_targets()


@pytest.mark.slow
def test_executors_and_a_resumed_run_have_the_same_bits(tmp_path):
    target = f"lr_schedule._target_={_PATH}CosineAnnealingLR"
    words = (*TINY, "threads=1", "lr_schedule=custom", target, "+lr_schedule.T_max=8", "lr_schedule.unit=step")
    run_here(tmp_path / "distributed", *words)
    run_here(tmp_path / "simulated", *words, "executor=simulated")
    checkpoint = tmp_path / "simulated" / "checkpoints" / "step-00000005"
    run_here(tmp_path / "resumed", *words, "executor=simulated", f"resume={checkpoint}")
    found = [summary(tmp_path / name) for name in ("distributed", "simulated", "resumed")]
    assert len({each["weights_sha256"] for each in found}) == 1
    assert {each["choices"]["lr_schedule"] for each in found} == {"CosineAnnealingLR"}
