"""What is compared: every combination of the command's settings, checked, with its length and its predicted costs."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipetrain.comparison.halving import Axis
from pipetrain.config.composition import combinations, composed, overrides_of, with_choices_of
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError, as_configured
from pipetrain.libraries.processes import usable_cores
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.tracking.evaluations import lower_is_better
from pipetrain.tracking.progress import announce
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.training.job import Job
from pipetrain.training.preflight import prepare
from pipetrain.training.profiling.predict import ProfiledRun

RATE, _METRIC = "optimizer.lr", "checkpoint.metric"
_DEFAULTS = ("executor=simulated", "checkpoint.every_epochs=0", "log.to=[]", "launch.stop_timeout=0")
_OURS = {
    "seed": "the comparison has seeds of its own; --seeds N sets how many are reported",
    "resume": "finished runs in the folder of -o are reused by themselves",
    "hydra": "the comparison does not use Hydra's folders and sweepers; -o FOLDER says where to write",
}
_CHOICES = ("method", "model", "optimizer")
_COSTLY = ("dataset", "device", "executor", "partition", "phases", "schedule", "threads", "train")
"""Choices and sections on which the length and the predicted costs of a run depend."""
_NO_RESULTS = ("topology", "planner", "log", "launch", "checkpoint", "sweep", "profile", "seed", "trace", "debug")
"""Settings that leave results as they are; with `partition=auto`, however, topology and planner cut the model."""


@dataclass(frozen=True)
class Costs:
    """Predicted costs of a pipeline.

    Attributes:
        step_s: seconds of a step in each phase, with the step at which the phase ends.
        memory_bytes: peak of a device of the largest stage.
        notes: on the prediction; of a pipeline that cannot be predicted, why.
    """

    step_s: tuple[tuple[int, float], ...] = ()
    memory_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def seconds(self, steps: float) -> float | None:
        """Seconds of the first steps of a run; None if they are not known."""
        if math.isinf(steps):
            return math.inf if self.step_s else None
        total, begin = 0.0, 0
        for end, seconds in self.step_s:
            total += max(0.0, min(steps, end) - begin) * seconds
            begin = end
        return total if self.step_s else None


@dataclass(frozen=True)
class Contender:
    """A configuration, which is tuned, run with several seeds, and compared with others.

    Attributes:
        words: all its settings.
        key: equal for configurations whose runs have the same results.
        axes: what is tuned.
        tuning_seeds: number of seeds of each trial.
        steps: length of its runs.
        phases: number of its phases.
        cores: number of cores that a run keeps busy.
        metric: the one that it is tuned by.
        lower: its metrics that fall as the model improves.
        differing: setting -> value of those settings that distinguish it from the others, the method first.
    """

    words: tuple[str, ...]
    key: str
    method: str
    axes: tuple[Axis, ...]
    tuning_seeds: int
    steps: int
    phases: int
    cores: int
    metric: str
    lower: tuple[str, ...]
    costs: Costs
    differing: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The settings that distinguish it, by the last part of their names where that is enough."""
        last = [name.rpartition(".")[2] for name in self.differing]
        shown = (short if last.count(short) == 1 else name for short, name in zip(last, self.differing, strict=True))
        pairs = zip(shown, self.differing.values(), strict=True)
        return " ".join(value if name == "method" else f"{name}={value}" for name, value in pairs) or self.method

    def loss_of(self, run: ComparedRun) -> float:
        """The final value of the metric, negative if more is better; infinite if the run did not complete."""
        value = run.final.get(self.metric) if run.status == "completed" else None
        if value is None:
            return math.inf
        return value if self.metric in self.lower else -value


def contenders_of(
    words: Sequence[str], tune: Sequence[str] = (), tuning_seeds: int = 1, config_dir: Path | None = None
) -> list[Contender]:
    """The configurations that the words make, checked as runs are before they begin. Their pipelines are measured.

    Args:
        words: settings and choices, some with several values.
        tune: settings to tune with their values, such as `optimizer.lr=0.01,0.03`.
        tuning_seeds: number of seeds of each trial.
        config_dir: folder of choices of the user's own.

    Raises:
        ConfigError: one of the runs cannot work.
        DataError: the data set's own code fails.
    """
    given = _names(words)
    for name, why in _OURS.items():
        if found := next((each for each in given if each == name or each.startswith(f"{name}.")), None):
            raise ConfigError(f"{found}: {why}")
    axes = [_axis(word) for word in tune]
    for axis in axes:
        if axis.setting in given:
            raise ConfigError(f"--tune {axis.setting}: is also among the settings; leave one of them out")
        section = axis.setting.partition(".")[0]
        if axis.setting in _CHOICES or (section in _COSTLY and axis.setting != "train.ema"):
            raise ConfigError(
                f"--tune {axis.setting}: may change the length or the costs of a run; as a setting with these values, "
                "it makes a configuration of each"
            )
    simulated = given.get("executor", "simulated") == "simulated"
    more = [word for word in (*_DEFAULTS, *(["threads=1"] if simulated else [])) if word.partition("=")[0] not in given]
    every = list(dict.fromkeys(map(tuple, combinations(with_choices_of(config_dir, [*words, *more])))))
    contenders = []
    for number, chosen in enumerate(every, 1):
        with announce(f"checking and predicting configuration {number} of {len(every)}"):
            for word in [f"{axis.setting}={value}" for axis in axes for value in axis.values] if number == 1 else ():
                composed([*chosen, word])  # a setting may not exist, or not have such a value
            contenders.append(_contender(chosen, axes, tuning_seeds))
    return contenders


def distinguished(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders with the settings that distinguish them."""
    members = [{name.lstrip("+"): value for name, _, value in (w.partition("=") for w in c.words)} for c in contenders]
    names = dict.fromkeys(name for member in members for name in member)
    differing = [name for name in names if name != _METRIC and len({member.get(name) for member in members}) > 1]
    differing.sort(key=lambda name: name != "method")
    pairs = zip(contenders, members, strict=True)
    return [replace(c, differing={name: member[name] for name in differing if name in member}) for c, member in pairs]


def _contender(words: Sequence[str], axes: Sequence[Axis], tuning_seeds: int) -> Contender:
    settings = composed(words)
    if not any(axis.setting == RATE for axis in axes):
        if settings.optimizer.lr is None:
            raise ConfigError(f"{RATE} is not set, and there is nothing to tune around; --tune {RATE}=0.01,0.03,0.1")
        axes = [Axis.around(RATE, settings.optimizer.lr), *axes]
    if settings.train.target is not None:
        raise ConfigError(
            f"train.target={as_configured(settings.train.target)}: it would end runs early; train.target=null leaves "
            "it out, and --target METRIC=VALUE asks for the steps to a target"
        )
    if settings.eval.every_epochs == 0:
        raise ConfigError("eval.every_epochs=0: no run would be evaluated, so nothing can be compared; set it to 1")
    job = prepare(settings, RunDirectory(Path("comparison-preflight")))  # reads no file there, and writes none
    return Contender(
        words=tuple(words),
        key=_key(settings, job),
        method=settings.choices["method"],
        axes=tuple(axes),
        tuning_seeds=tuning_seeds,
        steps=job.timetable.total_steps,
        phases=len(settings.phases),
        # processes of the stages, or runs on one GPU, would get in each other's way
        cores=job.threads if settings.executor.simulated and job.device == "cpu" else usable_cores(),
        metric=settings.checkpoint.metric,
        lower=tuple(sorted(lower_is_better(job.lower_is_better))),
        costs=_costs(settings, job.timetable.phase_ends),
    )


def _costs(settings: Settings, phase_ends: Sequence[int]) -> Costs:
    try:
        run = ProfiledRun.of(settings)
        predictions = [prediction for _, prediction in run.predictions()]
    except ConfigError as error:  # such as of a method without operation lists
        return Costs(notes=(f"not predicted: {error}",))
    known = [stage.memory_bytes for each in predictions for stage in each.stages if stage.memory_bytes is not None]
    times = [each.time_per_minibatch_s for each in predictions]
    return Costs(tuple(zip(phase_ends, times, strict=True)), max(known, default=None), tuple(run.notes()))


def _key(settings: Settings, job: Job) -> str:
    """Hash of the settings that change results, and of what is in the files that they name."""
    planned = settings.choices.get("partition") == "auto"
    left_out = {name for name in _NO_RESULTS if not (planned and name in ("topology", "planner", "profile"))}
    content = {name: value for name, value in settings.stored.items() if name not in left_out}
    content["drains"] = settings.checkpoint.every_steps
    if settings.choices.get("partition") == "file":
        content["cut"] = [job.plan.bounds, job.plan.replicas]
    if job.initial_weights is not None:
        content["weights"] = job.initial_weights.sha256
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _names(words: Sequence[str]) -> dict[str, str]:
    """Setting -> value, as they were written."""
    parsed = overrides_of(words)
    return {each.key_or_group: str(each.input_line).partition("=")[2] for each in parsed if each.key_or_group}


def _axis(word: str) -> Axis:
    """The axis of `optimizer.lr=0.01,0.03`.

    Raises:
        ConfigError: it is no setting with values.
    """
    setting, equals, _ = word.partition("=")
    if not equals:
        raise ConfigError(f"--tune {word}: a setting and its values, such as {RATE}=0.003,0.01,0.03")
    values = [chosen[0].partition("=")[2] for chosen in combinations([word])]
    if len(set(values)) < len(values):
        raise ConfigError(f"--tune {word}: a value is given twice")
    return Axis(setting, tuple(values))
