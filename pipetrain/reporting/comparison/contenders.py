"""The configurations of a comparison: every combination of the given settings, checked and predicted."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipetrain.engine.errors import ConfigError, NoRoomError, as_configured
from pipetrain.engine.processes import usable_cores
from pipetrain.reporting.comparison.costs import Costs, checked, fixed_costs, predicted_costs
from pipetrain.reporting.comparison.halving import Axis, rungs_of
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.groups import name_of, short_settings
from pipetrain.runner.config.composition import Composition, combinations, composed, overrides_of, with_choices_of
from pipetrain.runner.config.schema import LogConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.evaluations import lower_is_better
from pipetrain.runner.tracking.progress import announce
from pipetrain.runner.training.components.optimizer import build_rate
from pipetrain.runner.training.job import Job

RATE, METRIC = "optimizer.lr", "checkpoint.metric"
_DEFAULTS = ("executor=simulated", "checkpoint.every_epochs=0", "log.to=[]", "launch.stop_timeout=0")
_NOT_GIVEN = {
    "seed": "each configuration runs with several seeds; --seeds N sets how many",
    "resume": "finished runs in the folder of -o are reused by themselves",
    "hydra": "the comparison does not use Hydra's folders and sweepers; -o FOLDER says where to write",
}
_AVERAGE = "train.ema"
_TUNABLE = ("loss", "lr_schedule", "method", "model", "optimizer")
"""Sections whose settings may be tuned, if their values leave the length and the predicted costs as they are."""
_CHEAP = ("loss", "lr_schedule")
"""Sections whose settings never change length or costs."""
_AS_SETTING = "as a setting with these values, it makes a configuration of each"
_NO_CUTS = ("checkpoint", "debug", "launch", "log", "sweep", "trace")
_CUTS = ("partition", "partition.stages", "partition.replicated", "partition.replicas")
_CUT = re.compile(r"partition=explicit|partition\.(boundaries|stages|replicas)=[0-9\[\], ]+|~partition\.replicated")
"""Settings that a stored cut may have."""
_NO_RESULTS = ("topology", "planner", "log", "launch", "checkpoint", "sweep", "profile", "seed", "trace", "debug")
"""Settings that leave results as they are, but for `checkpoint.every_steps` and `log.every_steps`."""


@dataclass(frozen=True)
class Contender:
    """A configuration, which is tuned, run with several seeds, and compared with others.

    Attributes:
        words: all its settings.
        key: equal for configurations whose runs have the same results.
        axes: what is tuned.
        tuning_seeds: number of seeds of each trial.
        steps: length of its runs.
        rungs: lengths of the trials that tune it, ascending.
        cores: number of cores that a run keeps busy.
        metric: the one that it is tuned by.
        lower: its metrics that fall as the model improves.
        cut: explicit cuts that replace `partition=auto`, which would measure and cut the model again for each seed.
        differing: setting -> value of those settings in which it differs from other contenders, the method first.
    """

    words: tuple[str, ...]
    key: str
    method: str
    axes: tuple[Axis, ...]
    tuning_seeds: int
    steps: int
    rungs: tuple[int, ...]
    cores: int
    metric: str
    lower: tuple[str, ...]
    costs: Costs
    cut: tuple[str, ...] = ()
    differing: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The settings that distinguish it."""
        return name_of(self.named)

    @property
    def named(self) -> Mapping[str, str]:
        """The settings that distinguish it, or else its method."""
        return self.differing or {"method": self.method}

    @property
    def run_words(self) -> tuple[str, ...]:
        """The settings of its runs."""
        return _with_cut(self.words, self.cut)

    def loss_of(self, run: ComparedRun) -> float:
        """The final value of the metric, negative if more is better; infinite if the run did not complete."""
        value = run.final.get(self.metric) if run.status == "completed" else None
        if value is None:
            return math.inf
        return value if self.metric in self.lower else -value


def contenders_of(
    words: Sequence[str],
    tune: Sequence[str] = (),
    tuning_seeds: int = 1,
    config_dir: Path | None = None,
    cuts: Mapping[str, Sequence[str]] = {},
    baseline: str | None = None,
) -> tuple[list[Contender], list[str]]:
    """The configurations that the words make, checked as runs are before they begin. Their pipelines are measured.

    Those of which no plan of `partition=auto` fits into the devices' memory are left out, each with a line that says
    why, unless there are no others.

    Args:
        words: settings and choices, some with several values.
        tune: settings to tune with their values, such as `optimizer.lr=0.01,0.03`.
        tuning_seeds: number of seeds of each trial.
        config_dir: folder of choices of the user's own.
        cuts: `cut_key` of a configuration -> its `cut`, as an earlier call has planned it.
        baseline: a method that is to be among them; None for any.

    Raises:
        ConfigError: one of the runs cannot work, or none has the baseline.
        DataError: the data set's own code fails.
    """
    given = _names(words)
    axes = [_axis(word, given) for word in tune]
    every = _configurations(with_choices_of(config_dir, words), given, {axis.name for axis in axes})
    if baseline is not None:
        check_baseline(baseline, [Composition.of(chosen).choices["method"] for chosen in every])
    for word in itertools.chain(*(axis.words for axis in axes)):
        composed([*every[0], word])  # a setting may not exist, or not have such a value
    contenders, left_out = [], {}
    for number, chosen in enumerate(every, 1):
        with announce(f"checking and predicting configuration {number} of {len(every)}"):
            try:
                contenders.append(_contender(chosen, axes, tuning_seeds, tuple(cuts.get(cut_key(chosen), ()))))
            except NoRoomError as error:
                left_out[chosen] = error
    if not contenders:
        raise next(iter(left_out.values()))
    common = set.intersection(*map(set, every))
    lines = [(" ".join(word for word in chosen if word not in common), error) for chosen, error in left_out.items()]
    return distinguished(contenders), [f"{name}: not compared: {error}" for name, error in lines]


def check_baseline(baseline: str, methods: Sequence[str], left_out: Sequence[str] = ()) -> None:
    """Checks that a method is compared; `left_out` are lines on configurations that are not.

    Raises:
        ConfigError: it is not.
    """
    if baseline not in methods:
        choices, why = ", ".join(dict.fromkeys(methods)), "".join(f"; {line}" for line in left_out)
        raise ConfigError(f"--baseline {baseline}: is not compared; choose from {choices}{why}")


def _configurations(words: Sequence[str], given: Collection[str], tuned: Collection[str]) -> list[tuple[str, ...]]:
    """Every combination of the words, completed by the defaults of comparisons."""
    simulated = "executor" not in given or "executor=simulated" in words
    defaults = [*_DEFAULTS, *(["threads=1"] if simulated else [])]
    more = [word for word in defaults if word.partition("=")[0] not in given]
    return list(dict.fromkeys(each for chosen in combinations([*words, *more]) for each in _varied(chosen, tuned)))


def _varied(words: Sequence[str], tuned: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The words with every combination of what their preset varies by itself, except for seeds and what is tuned."""
    varied = (word for word in Composition.of(words).varied(words) if word.partition("=")[0] not in {"seed", *tuned})
    return map(tuple, combinations([*words, *varied]))


def cut_key(words: Sequence[str]) -> str:
    """The words, in any order, on which the planned cuts of a configuration depend."""
    return " ".join(sorted(word for word in words if re.split(r"[.=]", word.lstrip("+"))[0] not in _NO_CUTS))


def check_cut(words: Sequence[str]) -> None:
    """Checks that words from a file set the cut of a model and nothing else, as they become settings of runs.

    Raises:
        ConfigError: one sets something else.
    """
    if unknown := next((word for word in words if not _CUT.fullmatch(word)), None):
        raise ConfigError(f"cut={unknown}: sets no cut of the model")


def distinguished(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders with the settings that distinguish them."""
    members = [values_of(contender.words) for contender in contenders]
    names = [name for name in dict.fromkeys(itertools.chain(*members)) if name != METRIC]
    differing = [name for name in names if len({member.get(name) for member in members}) > 1]
    differing.sort(key=lambda name: name != "method")
    pairs = zip(contenders, members, strict=True)
    return [replace(contender, differing=short_settings(differing, member)) for contender, member in pairs]


def values_of(words: Sequence[str]) -> dict[str, str]:
    """Setting -> value, as words have them."""
    return {name.lstrip("+"): value for name, _, value in (word.partition("=") for word in words)}


def _contender(words: Sequence[str], axes: Sequence[Axis], tuning_seeds: int, cut: tuple[str, ...]) -> Contender:
    settings = composed(_with_cut(words, cut))
    _check_ends(settings)
    if not any(axis.name == RATE for axis in axes):
        if settings.optimizer.lr is None:
            raise ConfigError(f"{RATE} is not set, and there is nothing to tune around; --tune {RATE}=0.01,0.03,0.1")
        axes = [Axis.around(RATE, settings.optimizer.lr), *axes]
    job = checked(settings)
    if settings.choices.get("partition") == "auto":
        cut = _cut_of(words, job)
        settings = composed(_with_cut(words, cut))
    costs = predicted_costs(settings, job)
    run_words = _with_cut(words, cut)
    _check_costs(run_words, axes, fixed_costs(job, costs))
    return Contender(
        words=tuple(words),
        cut=cut,
        key=_key(settings, job),
        method=settings.choices["method"],
        axes=tuple(axes),
        tuning_seeds=tuning_seeds,
        steps=job.timetable.total_steps,
        rungs=_rungs(run_words, axes, job),
        # processes of the stages, or runs on one GPU, would get in each other's way
        cores=job.threads if settings.executor.simulated and job.device == "cpu" else usable_cores(),
        metric=settings.checkpoint.metric,
        lower=tuple(sorted(lower_is_better(job.lower_is_better))),
        costs=costs,
    )


def _check_ends(settings: Settings) -> None:
    """Checks that runs are evaluated and train to their end."""
    if settings.train.target is not None:
        raise ConfigError(
            f"train.target={as_configured(settings.train.target)}: it would end runs early; train.target=null leaves "
            "it out, and --target METRIC=VALUE asks for the steps to a target"
        )
    if settings.train.patience is not None:
        raise ConfigError(
            f"train.patience={settings.train.patience}: it would end runs early; train.patience=null works"
        )
    if settings.eval.every_epochs == 0:
        raise ConfigError("eval.every_epochs=0: no run would be evaluated, so nothing can be compared; set it to 1")


def _check_costs(words: Sequence[str], axes: Sequence[Axis], fixed: tuple[object, ...]) -> None:
    """Checks that no value of what is tuned changes the length or the costs of a run."""
    for axis in axes:
        for word in () if axis.name == RATE or axis.section in _CHEAP else axis.words:
            settings = composed([*words, word])
            job = checked(settings)
            if fixed_costs(job, predicted_costs(settings, job)) != fixed:
                raise ConfigError(f"--tune {word}: changes the length or the costs of a run; {_AS_SETTING}")


def _rungs(words: Sequence[str], axes: Sequence[Axis], job: Job) -> tuple[int, ...]:
    """Lengths of trials: only the whole one with phases, which have lengths of their own, and none within a warm-up."""
    whole = job.timetable.total_steps
    of_rate = [axis for axis in axes if axis.name == RATE or axis.section == "lr_schedule"]
    tried = [axis.words[:1] if axis.name == RATE else axis.words for axis in of_rate]
    every = [composed([*words, *chosen]) for chosen in itertools.product(*tried)]
    _check_rates(every, job, whole)  # a value may suit no run of this length
    if len(job.settings.phases) > 1:
        return (whole,)

    def suits(steps: int) -> bool:
        try:
            _check_rates(every, job, steps)
        except ConfigError:
            return False
        return True

    return tuple(steps for steps in rungs_of(axes, whole) if steps == whole or suits(steps))


def _check_rates(every: Sequence[Settings], job: Job, steps: int) -> None:
    """Checks that learning rates can be built for a run of this length."""
    for settings in every:
        build_rate(settings, replace(job.timetable, total_steps=steps))


def _cut_of(words: Sequence[str], job: Job) -> tuple[str, ...]:
    """Settings with the cuts that were planned for the run by measured times."""
    starts, replicas = [first for first, _ in job.plan.bounds[1:]], job.plan.replicas
    shared = [f"partition.replicas={list(replicas)}"] if replicas else []
    cut = "partition=explicit", f"partition.boundaries={starts}", f"partition.stages={len(starts) + 1}", *shared
    of_preset = Composition.of(_with_cut(words, cut)).config.partition  # whose own options of partition=auto remain
    return (*cut, "~partition.replicated") if "replicated" in of_preset else cut


def _with_cut(words: Sequence[str], cut: Sequence[str]) -> tuple[str, ...]:
    return (*(word for word in words if not cut or word.partition("=")[0].lstrip("+") not in _CUTS), *cut)


def _key(settings: Settings, job: Job) -> str:
    """Hash of the settings that change results, and of what is in the files that they name."""
    content = {name: value for name, value in settings.stored.items() if name not in _NO_RESULTS}
    content["drains"] = settings.checkpoint.every_steps
    if settings.log.every_steps != LogConfig().every_steps:  # keys without this entry stay valid
        content["losses"] = settings.log.every_steps
    if settings.choices.get("partition") == "file":
        content["cut"] = [job.plan.bounds, job.plan.replicas]
    if job.initial_weights is not None:
        content["weights"] = job.initial_weights.sha256
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


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


def _axis(word: str, given: Collection[str]) -> Axis:
    """The axis of `optimizer.lr=0.01,0.03`.

    Raises:
        ConfigError: it is no setting with values that can be tuned, or `given` has it.
    """
    setting, equals, _ = word.partition("=")
    if not equals:
        raise ConfigError(f"--tune {word}: a setting and its values, such as {RATE}=0.003,0.01,0.03")
    values = [chosen[0].partition("=")[2] for chosen in combinations([word])]
    if len(set(values)) < len(values):
        raise ConfigError(f"--tune {word}: a value is given twice")
    axis = Axis(setting, tuple(values))
    if axis.name in given:
        raise ConfigError(f"--tune {setting}: is also among the settings; leave one of them out")
    if axis.name != _AVERAGE and (axis.name == axis.section or axis.section not in _TUNABLE):
        raise ConfigError(f"--tune {setting}: may change the length or the costs of a run; {_AS_SETTING}")
    return axis
