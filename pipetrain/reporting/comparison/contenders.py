"""The configurations of a comparison: every combination of the given settings, checked and predicted."""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.processes import usable_cores
from pipetrain.reporting.comparison.costs import Costs, predicted_costs
from pipetrain.reporting.comparison.tuning import Grid, around
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.groups import distinguishing_settings, name_of
from pipetrain.runner.config.composition import (
    Composition,
    combinations,
    composed,
    overrides_of,
    settings_of,
    with_choices_of,
)
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.progress import announce, status
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import values_set
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.preflight import prepare

RATE, METRIC = "optimizer.lr", "checkpoint.metric"
_DEFAULTS = ("executor=simulated", "checkpoint.every_epochs=0", "log.to=[]", "launch.stop_timeout=0")
_NOT_GIVEN = {
    "seed": "each configuration runs with several seeds; --seeds N sets how many",
    "resume": "finished runs in the folder of -o are reused by themselves",
    "hydra": "the comparison does not use Hydra's folders and sweepers; -o FOLDER says where to write",
}
_TUNABLE = ("loss.", "lr_schedule.", "optimizer.")
"""Beginnings of settings that may be tuned, as they change neither the length of a run nor its predicted times."""
_NO_RESULTS = ("topology", "planner", "log", "launch", "checkpoint", "sweep", "profile", "seed", "trace", "debug")
"""Settings that leave results as they are, but for those of `_key`."""
_PREFLIGHT = RunDirectory(Path("comparison-preflight"))
"""No file of it is read or written."""
_START_S = 3.0
"""Seconds in which a run starts and ends."""
_OPERATION_S = 0.0005
"""Seconds that the simulator takes for an operation beyond the computation."""


@dataclass(frozen=True)
class Contender:
    """A configuration that is tuned, run with several seeds, and compared.

    Attributes:
        words: all its settings, as words of the command line.
        settings: every value that is set, by its name on the command line.
        cut: the first layer of every stage.
        key: equal for configurations whose runs have the same results.
        grid: what is tuned.
        steps: length of its runs.
        estimated_s: seconds of a run, by the operations of its model.
        cores: number of cores that a run keeps busy.
        costs: as predicted for the configured values of what is tuned.
        named: setting -> value of those settings that distinguish it from other contenders, or else its method.
    """

    words: tuple[str, ...]
    settings: Mapping[str, Any]
    cut: str
    key: str
    grid: Grid
    steps: int
    estimated_s: float
    cores: int
    costs: Costs = field(default_factory=Costs)
    named: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The settings that distinguish it."""
        return name_of(self.named)

    @property
    def method(self) -> str:
        """The method, the first one of several phases."""
        return str(self.settings["method"])

    @property
    def metric(self) -> str:
        """The metric that it is tuned by."""
        return str(self.settings[METRIC])

    def loss_of(self, run: ComparedRun) -> float:
        """The final value of the metric, negative if more is better; infinite if the run did not complete."""
        value = run.final.get(self.metric) if run.status == "completed" else None
        if value is None:
            return math.inf
        return value if self.metric in run.lower_is_better else -value


def contenders_of(
    words: Sequence[str],
    tune: Sequence[str] = (),
    config_dir: Path | None = None,
    baseline: str | None = None,
    begun: Callable[[Contender, int], object] = lambda _first, _count: None,
) -> list[Contender]:
    """The configurations that the words make, checked as runs are before they begin. Their pipelines are measured.

    Args:
        words: settings and choices, some with several values.
        tune: settings to tune with their values, such as `optimizer.lr=0.01,0.03`.
        config_dir: folder of choices of the user's own.
        baseline: a method that is to be among them; None for any.
        begun: called with the first one, whose costs are not known yet, and their number.

    Raises:
        ConfigError: one of the runs cannot work, or none has the baseline.
        DataError: the data set's own code fails.
    """
    given = _names(words)
    axes = {_tuned(word, given): tuple(each for [each] in combinations([word])) for word in tune}
    every = _configurations(with_choices_of(config_dir, words), given, axes)
    methods = dict.fromkeys(settings.choices["method"] for settings in every.values())
    if baseline not in (None, *methods):
        raise ConfigError(f"--baseline {baseline}: is not compared; choose from {', '.join(methods)}")
    checked, contenders = list[tuple[Contender, Job]](), list[Contender]()
    for number, (chosen, settings) in enumerate(every.items(), 1):
        with status(f"checking configuration {number} of {len(every)}"):
            checked.append(_contender(chosen, settings, axes))
        if number == 1:
            begun(checked[0][0], len(every))
    for number, (contender, job) in enumerate(checked, 1):
        with announce(f"predicting configuration {number} of {len(every)}"):
            contenders.append(replace(contender, costs=predicted_costs(job.settings, job)))
    return distinguished(contenders)


def _configurations(
    words: Sequence[str], given: Collection[str], tuned: Collection[str]
) -> dict[tuple[str, ...], Settings]:
    """Every combination of the words, and of what a preset varies by itself except for seeds and what is tuned."""
    simulated = "executor" not in given or "executor=simulated" in words
    defaults = [*_DEFAULTS, *(["threads=1"] if simulated else [])]
    more = [word for word in defaults if word.partition("=")[0] not in given]
    found: dict[tuple[str, ...], Settings] = {}
    for chosen in combinations([*words, *more]):
        composition = Composition.of(chosen)
        varied = [word for word in composition.varied(chosen) if word.partition("=")[0] not in {"seed", *tuned}]
        if varied:
            found |= {tuple(each): composed(each) for each in combinations([*chosen, *varied])}
        else:
            found[tuple(chosen)] = settings_of(composition.config, composition.choices, missing_ok=True)
    return found


def distinguished(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders with the settings that distinguish them, which are those that name them in reports of runs."""
    runs = [
        ComparedRun(Path(), "", settings=each.settings, asked=list(map(_name, each.words)), facts={"cut": each.cut})
        for each in contenders
    ]
    named = zip(contenders, distinguishing_settings(runs), strict=True)
    return [replace(each, named=differing or {"method": each.method}) for each, differing in named]


def _contender(words: Sequence[str], settings: Settings, axes: Mapping[str, tuple[str, ...]]) -> tuple[Contender, Job]:
    _check_comparable(settings)
    others = tuple(words for name, words in axes.items() if name != RATE)
    if RATE in axes:
        grid = Grid((axes[RATE], *others))
    elif settings.optimizer.lr is not None:
        grid = Grid((around(RATE, settings.optimizer.lr), *others), extends=True)
    else:
        raise ConfigError(f"{RATE} is not set, so there is nothing to tune around; use --tune {RATE}=0.01,0.03,0.1")
    job = prepare(settings, _PREFLIGHT)
    for word in itertools.chain(*axes.values()):
        prepare(composed([*words, word]), _PREFLIGHT)
    contender = Contender(
        words=tuple(words),
        settings=values_set(settings.stored, settings.choices),
        cut=",".join(str(first) for first, _ in job.plan.bounds),
        key=_key(settings, job),
        grid=grid,
        steps=job.timetable.total_steps,
        estimated_s=_estimated_s(job),
        # processes of the stages, or runs on one GPU, would get in each other's way
        cores=job.threads if settings.executor.simulated and job.device == "cpu" else usable_cores(),
    )
    return contender, job


def _estimated_s(job: Job) -> float:
    stages = job.plan.stages
    operations = len(stages) * (2 * job.settings.train.microbatches + 1)
    step_s = sum(stage.estimated_seconds for stage in stages) + operations * _OPERATION_S
    return _START_S + job.timetable.total_steps * step_s


def _check_comparable(settings: Settings) -> None:
    """Checks that runs train to their end, are evaluated, and have the same cuts with every seed."""
    train = settings.train
    if train.target is not None:
        raise ConfigError(
            f"train.target={as_configured(train.target)}: would end runs early; set train.target=null, and use "
            "--target METRIC=VALUE for the steps to a target"
        )
    if train.patience is not None:
        raise ConfigError(f"train.patience={train.patience}: would end runs early; train.patience=null works")
    if settings.eval.every_epochs == 0:
        raise ConfigError("eval.every_epochs=0: no run would be evaluated, so nothing can be compared; set it to 1")
    if settings.choices.get("partition") == "auto" and settings.profile is None:
        raise ConfigError(
            "partition=auto: would measure the model and cut it again for each run; profile=FILE, written by "
            "`pipetrain profile`, gives all runs the same cuts"
        )


def _key(settings: Settings, job: Job) -> str:
    """Hash of the settings that change results, and of what is in the files that they name."""
    content = {name: value for name, value in settings.stored.items() if name not in _NO_RESULTS}
    steps = settings.checkpoint.every_steps, settings.log.every_steps
    weights = None if job.initial_weights is None else job.initial_weights.sha256
    whole = [content, steps, job.plan.bounds, job.plan.replicas, weights]
    return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _names(words: Sequence[str]) -> list[str]:
    """The settings that the words give.

    Raises:
        ConfigError: the comparison sets one itself.
    """
    names = [str(each.key_or_group) for each in overrides_of(words) if each.key_or_group]
    for name in names:
        if why := _NOT_GIVEN.get(name.partition(".")[0]):
            raise ConfigError(f"{name}: {why}")
    return names


def _tuned(word: str, given: Collection[str]) -> str:
    """The name of the setting that `optimizer.lr=0.01,0.03` tunes.

    Raises:
        ConfigError: it is no setting with values that can be tuned, or `given` has it.
    """
    name = _name(word)
    if "=" not in word:
        raise ConfigError(f"--tune {word}: must be a setting and its values, such as {RATE}=0.003,0.01,0.03")
    if name in given:
        raise ConfigError(f"--tune {name}: is also set to a value; leave one of the two out")
    if not name.startswith(_TUNABLE):
        raise ConfigError(
            f"--tune {name}: may change the length or cost of a run; set it to these values instead, which compares a "
            "configuration with each"
        )
    return name


def _name(word: str) -> str:
    return word.lstrip("+").partition("=")[0]
