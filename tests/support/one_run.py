"""One run of a tiny model as the command line sees it, in this process."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from support.methods import MethodCase
from support.worker_pool import CONFIG, settings

from pipetrain.commands.run.one_run import run
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.preflight import prepare

EVEN = {"_target_": "pipetrain.runner.partition.rules.Even", "stages": 2}
CHOICES = {"method": "pipedream", "schedule": "1f1b", "model": "small", "dataset": "synthetic_images"}
HYDRA = OmegaConf.create({"overrides": {"task": ["method=pipedream", "seed=3"]}, "runtime": {"choices": CHOICES}})


def carried_out(folder: Path, *overrides: str, hydra: DictConfig = HYDRA) -> ExitCode:
    """Two simulated stages, six steps an epoch."""
    base = OmegaConf.create({**CONFIG, **MethodCase.named("pipedream").sections(), "executor": {"name": "simulated"}})
    base.partition = EVEN
    config = OmegaConf.merge(base, {"device": "cpu"}, OmegaConf.from_dotlist(list(overrides)))
    return run(config, CHOICES, folder, hydra)


def prepared(folder: Path, case: str = "pipedream", **changes: object) -> Job:
    """A tiny run on a CPU in two even stages, checked and planned as before its start."""
    return prepare(settings(case, **{"device": "cpu", "partition": EVEN, **changes}), RunDirectory(folder / "run"))
