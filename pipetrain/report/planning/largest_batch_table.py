"""The table of `pipetrain predict --fit`: the largest minibatch of each pipeline that fits its devices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from pipetrain.config.composition import combinations, composed
from pipetrain.errors import ConfigError
from pipetrain.planner.max_batch import (
    MOST_SAMPLES,
    ActivationGrowth,
    activation_growth,
    largest_batch,
    overfull_stages,
)
from pipetrain.report.planning.prediction_tables import named, profiled_runs
from pipetrain.report.text_table import size_of, text_table
from pipetrain.run.profiling.predict import ProfiledRun


@dataclass(frozen=True)
class Fit:
    """A pipeline and its devices.

    Attributes:
        run: its stages, with their activations at the profile's batch size.
        phase: of the run.
        growth: of the activations of each stage with the batch.
    """

    run: ProfiledRun
    phase: int
    growth: Sequence[ActivationGrowth]

    def bytes_at(self, samples: int) -> list[int]:
        """The peak of a device of each stage."""
        return self.run.memory(self.phase, samples, [growth.at(samples) for growth in self.growth])

    @property
    def limits(self) -> list[float]:
        """The memory of the smallest device of each stage."""
        return [min(device.memory_bytes or inf for device in devices) for devices in self.run.cut.row.devices]

    def cells(self) -> list[str]:
        """The batch, a microbatch of it, the stage that keeps it from growing, and the memory of that stage."""
        n = self.run.settings.train.microbatches
        batch = largest_batch(lambda samples: not overfull_stages(self.bytes_at(samples), self.limits), n)
        if batch > MOST_SAMPLES - n:
            return ["any", "any", "none", size_of(max(self.bytes_at(0)))]
        tight = overfull_stages(self.bytes_at(batch + n), self.limits)[0]
        needed = self.bytes_at(batch or n)[tight]
        if not batch:
            return ["none", "none", str(tight), f"{size_of(needed)} for {n}"]
        return [f"{batch:,}", f"{batch // n:,}", str(tight), size_of(needed)]


def fit_table(words: Sequence[str]) -> Iterator[str]:
    """The lines of the table, a row for each member of a sweep and each phase.

    Raises:
        ConfigError: nothing says what fits, or how activations grow, or a pipeline cannot be built.
    """
    for chosen in combinations(words):
        if composed(chosen).topology.memory_gigabytes is None:
            raise ConfigError("--fit: topology.memory_gigabytes=null: give the memory of a device, such as 16")
    rows = []
    for run, other in map(_twice, (run for _, run in profiled_runs(words))):
        growth = activation_growth(run.cut, None if other is None else other.cut)
        for index, phase in enumerate(run.settings.phases):
            rows.append([*named(phase.choices, run).values(), *Fit(run, index, growth).cells()])
    heads = ("method", "schedule", "D", "N", "largest batch", "microbatch", "full at stage", "which then holds")
    yield from text_table(heads, rows, "<<>>>>>>")


def _twice(run: ProfiledRun) -> tuple[ProfiledRun, ProfiledRun | None]:
    """The run, and where it is measured, the same at half the batch: activations may have a part that never grows."""
    settings, n = run.settings, run.settings.train.microbatches
    if run.cut.profile.batch_size is None:
        raise ConfigError(
            f"--fit: profile={settings.profile} does not say the batch size that it was measured with; "
            "`pipetrain profile` writes one that does"
        )
    half = settings.train.batch_size // 2 // n * n
    if settings.profile is not None or not half:
        return run, None
    return run, ProfiledRun.of(replace(settings, train=replace(settings.train, batch_size=half)))
