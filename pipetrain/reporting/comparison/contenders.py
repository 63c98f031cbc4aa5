"""What is compared: every combination of the command's settings, checked, with its length and its predicted costs."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipetrain.engine.errors import ConfigError, NoRoomError, as_configured
from pipetrain.engine.libraries.processes import usable_cores
from pipetrain.reporting.comparison.costs import PREFLIGHT, Costs, check_costs, fixed_costs, predicted_costs
from pipetrain.reporting.comparison.halving import Axis, rungs_of
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.runner.config.composition import Composition, combinations, composed, overrides_of, with_choices_of
from pipetrain.runner.config.schema import LogConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.evaluations import lower_is_better
from pipetrain.runner.tracking.progress import announce
from pipetrain.runner.training.builders.optimizer import build_rate
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.preflight import prepare

RATE, METRIC = "optimizer.lr", "checkpoint.metric"
_DEFAULTS = ("executor=simulated", "checkpoint.every_epochs=0", "log.to=[]", "launch.stop_timeout=0")
_OURS = {
    "seed": "the comparison has seeds of its own; --seeds N sets how many are reported",
    "resume": "finished runs in the folder of -o are reused by themselves",
    "hydra": "the comparison does not use Hydra's folders and sweepers; -o FOLDER says where to write",
}
_CHOICES = ("method", "model", "optimizer")
_COSTLY = ("dataset", "device", "executor", "partition", "phases", "schedule", "threads", "train")
"""Choices and sections on which the length and the predicted costs of a run depend."""
_MAY_COST = ("method", "model", "optimizer")
"""Sections with some options on which these depend; the learning rate is none of them."""
_AVERAGE = "train.ema"
"""Costs memory and time if it is set, whatever its value."""
_NO_CUTS = ("checkpoint", "debug", "launch", "log", "sweep", "trace")
_CUTS = ("partition", "partition.stages", "partition.replicated", "partition.replicas")
_CUT = re.compile(r"partition=explicit|partition\.(boundaries|stages|replicas)=[0-9\[\], ]+|~partition\.replicated")
"""Settings that a stored cut may have. They become settings of runs, and the file may come from someone else."""
_NO_RESULTS = ("topology", "planner", "log", "launch", "checkpoint", "sweep", "profile", "seed", "trace", "debug")
"""Settings that leave results as they are, but for `checkpoint.every_steps` and `log.every_steps`."""


@dataclass(frozen=True)
class Contender:
    """A configuration, which is tuned, run with several seeds, and compared with others.

    Attributes:
        words: all its settings.
        cut: explicit cuts that replace `partition=auto`, which would measure and cut the model again for each seed.
        key: equal for configurations whose runs have the same results.
        axes: what is tuned.
        tuning_seeds: number of seeds of each trial.
        steps: length of its runs.
        rungs: lengths of the trials that tune it, ascending.
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
    rungs: tuple[int, ...]
    cores: int
    metric: str
    lower: tuple[str, ...]
    costs: Costs
    cut: tuple[str, ...] = ()
    differing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := next((word for word in self.cut if not _CUT.fullmatch(word)), None):
            raise ConfigError(f"cut={unknown}: sets no cut of the model")

    @property
    def name(self) -> str:
        """The settings that distinguish it, by the last part of their names where that is enough."""
        last = [name.rpartition(".")[2] for name in self.differing]
        shown = (short if last.count(short) == 1 else name for short, name in zip(last, self.differing, strict=True))
        pairs = zip(shown, self.differing.values(), strict=True)
        return " ".join(value if name == "method" else f"{name}={value}" for name, value in pairs) or self.method

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
    cuts: Mapping[frozenset[str], tuple[str, ...]] = {},
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
        if axis.name in given:
            raise ConfigError(f"--tune {axis.setting}: is also among the settings; leave one of them out")
        section = axis.name.partition(".")[0]
        if axis.name in _CHOICES or (section in _COSTLY and axis.name != _AVERAGE):
            raise ConfigError(
                f"--tune {axis.setting}: may change the length or the costs of a run; as a setting with these values, "
                "it makes a configuration of each"
            )
    words = with_choices_of(config_dir, words)
    simulated = given.get("executor", "simulated") == "simulated"
    more = [word for word in (*_DEFAULTS, *(["threads=1"] if simulated else [])) if word.partition("=")[0] not in given]
    tuned = {axis.name for axis in axes}
    every = list(dict.fromkeys(each for chosen in combinations([*words, *more]) for each in _varied(chosen, tuned)))
    contenders, left_out = [], {}
    for number, chosen in enumerate(every, 1):
        with announce(f"checking and predicting configuration {number} of {len(every)}"):
            for word in [f"{axis.setting}={value}" for axis in axes for value in axis.values] if number == 1 else ():
                composed([*chosen, word])  # a setting may not exist, or not have such a value
            try:
                contenders.append(_contender(chosen, axes, tuning_seeds, cuts.get(cut_key(chosen), ())))
            except NoRoomError as error:
                left_out[" ".join(word for word in chosen if not all(word in other for other in every))] = error
    if not contenders:
        raise next(iter(left_out.values()))
    return contenders, [f"{name}: not compared: {error}" for name, error in left_out.items()]


def methods_of(words: Sequence[str], config_dir: Path | None = None) -> list[str]:
    """The methods of the configurations that the words make, which are composed, but not checked."""
    every = {each for chosen in combinations(with_choices_of(config_dir, words)) for each in _varied(chosen, ())}
    return sorted({Composition.of(each).choices["method"] for each in every})


def cut_key(words: Sequence[str]) -> frozenset[str]:
    """The words, in any order, on which the planned cuts of a configuration depend."""
    return frozenset(word for word in words if re.split(r"[.=]", word.lstrip("+"))[0] not in _NO_CUTS)


def _varied(words: Sequence[str], tuned: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The words with every combination of what their preset varies by itself, except for seeds and what is tuned."""
    varied = (word for word in Composition.of(words).varied(words) if word.partition("=")[0] not in {"seed", *tuned})
    return map(tuple, combinations([*words, *varied]))


def not_replaced(earlier: Sequence[Contender], named: Sequence[Contender]) -> list[Contender]:
    """The contenders of earlier calls that the named ones do not replace.

    One is replaced by another with the same results on the same topology, whose prediction is newer. The same words
    with another key replace it, too: a file that they name has changed since.
    """
    replacing = {_on_topology(each) for each in named} | {_settings(each) for each in named}
    return [each for each in earlier if not {_on_topology(each), _settings(each)} & replacing]


def _settings(contender: Contender) -> frozenset[str]:
    """The words in any order, without the metric that `--target` adds."""
    return frozenset(word for word in contender.words if word.partition("=")[0] != METRIC)


def _on_topology(contender: Contender) -> tuple[str, frozenset[str]]:
    words = (word.lstrip("+") for word in contender.words)
    return contender.key, frozenset(word for word in words if word.startswith("topology."))


def distinguished(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders with the settings that distinguish them."""
    members = [{name.lstrip("+"): value for name, _, value in (w.partition("=") for w in c.words)} for c in contenders]
    names = dict.fromkeys(name for member in members for name in member)
    differing = [name for name in names if name != METRIC and len({member.get(name) for member in members}) > 1]
    differing.sort(key=lambda name: name != "method")
    pairs = zip(contenders, members, strict=True)
    return [replace(c, differing={name: member[name] for name in differing if name in member}) for c, member in pairs]


def _contender(words: Sequence[str], axes: Sequence[Axis], tuning_seeds: int, cut: tuple[str, ...]) -> Contender:
    settings = composed(_with_cut(words, cut))
    if not any(axis.name == RATE for axis in axes):
        if settings.optimizer.lr is None:
            raise ConfigError(f"{RATE} is not set, and there is nothing to tune around; --tune {RATE}=0.01,0.03,0.1")
        axes = [Axis.around(RATE, settings.optimizer.lr), *axes]
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
    job = prepare(settings, PREFLIGHT)
    if settings.choices.get("partition") == "auto":
        cut = _cut_of(words, job)
        settings = composed(_with_cut(words, cut))
    costs, sizes = predicted_costs(settings, job)
    for axis in axes:
        if axis.name == _AVERAGE or (axis.name.partition(".")[0] in _MAY_COST and axis.name != RATE):
            check_costs(_with_cut(words, cut), axis, fixed_costs(job, sizes))
    return Contender(
        words=tuple(words),
        cut=cut,
        key=_key(settings, job),
        method=settings.choices["method"],
        axes=tuple(axes),
        tuning_seeds=tuning_seeds,
        steps=job.timetable.total_steps,
        rungs=_rungs(_with_cut(words, cut), axes, job),
        # processes of the stages, or runs on one GPU, would get in each other's way
        cores=job.threads if settings.executor.simulated and job.device == "cpu" else usable_cores(),
        metric=settings.checkpoint.metric,
        lower=tuple(sorted(lower_is_better(job.lower_is_better))),
        costs=costs,
    )


def _rungs(words: Sequence[str], axes: Sequence[Axis], job: Job) -> tuple[int, ...]:
    """Lengths of trials: only the whole one with phases, which have lengths of their own, and none within a warm-up."""
    whole = job.timetable.total_steps
    tuned = [[f"{axis.setting}={value}" for value in axis.values] for axis in axes if _of_schedule(axis)]
    rates = [f"{axis.setting}={axis.values[0]}" for axis in axes if axis.name == RATE]
    every = [composed([*words, *rates, *chosen]) for chosen in itertools.product(*tuned)]
    for settings in every:
        build_rate(settings, job.timetable)  # a value may suit no run of this length
    if len(job.settings.phases) > 1:
        return (whole,)

    def suits(steps: int) -> bool:
        try:
            for settings in every:
                build_rate(settings, replace(job.timetable, total_steps=steps))
        except ConfigError:
            return False
        return True

    return tuple(steps for steps in rungs_of(axes, whole) if steps == whole or suits(steps))


def _of_schedule(axis: Axis) -> bool:
    return axis.name.partition(".")[0] == "lr_schedule"


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
    if settings.log.every_steps != LogConfig().every_steps:  # else the key is that of comparisons without this entry
        content["losses"] = settings.log.every_steps
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
