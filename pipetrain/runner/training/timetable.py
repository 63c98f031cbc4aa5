"""When a run drains, evaluates, saves and ends."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.runner.config.settings import Settings


@dataclass(frozen=True)
class Timetable:
    """The steps of a run, counted from its start, at which something happens.

    Attributes:
        steps_per_epoch: minibatches of an epoch.
        evaluate_every, save_every: epochs; 0 for only at the end (evaluate: never).
        save_every_steps: also every so many steps.
        phase_ends: steps of the run at which its phases end, the last included.
        save_evaluated: True to save after each evaluation, too.
        decode_every: epochs; evaluations after a multiple of them decode, and the last one.
    """

    total_steps: int
    steps_per_epoch: int
    evaluate_every: int
    save_every: int
    save_every_steps: int | None
    phase_ends: Sequence[int]
    save_evaluated: bool = False
    decode_every: int = 1

    def intervals(self, step: int) -> Iterator[DrainInterval]:
        """The intervals from `step` on, each up to the next drain."""
        every = self.save_every_steps or self.total_steps
        while step < self.total_steps:
            epoch, first = divmod(step, self.steps_per_epoch)
            phase = bisect_right(self.phase_ends, step)
            drains = ((epoch + 1) * self.steps_per_epoch, (step // every + 1) * every, self.phase_ends[phase])
            end = min(*drains, self.total_steps)
            yield DrainInterval(epoch, first, first + end - step, step, phase)
            step = end

    def drains(self, step: int) -> bool:
        """True if the pipeline drains after `step` steps of any run with these settings."""
        return self.ends_epoch(step) or self._is_due(step, self.save_every_steps) or step in (0, *self.phase_ends)

    def ends_epoch(self, step: int) -> bool:
        """True if an epoch, or the run, ends after `step` steps."""
        return self._is_due(step, self.steps_per_epoch)

    def evaluates(self, step: int) -> bool:
        """True if the evaluation set is passed after `step` steps."""
        return self._is_due(step, self.steps_per_epoch * self.evaluate_every)

    def decodes(self, step: int) -> bool:
        """True if the evaluation after `step` steps takes the metrics of the whole model, too."""
        return self.evaluates(step) and self._is_due(step, self.steps_per_epoch * self.decode_every)

    @property
    def evaluations(self) -> list[int]:
        """The steps after which the evaluation set is passed."""
        ends = [*range(self.steps_per_epoch, self.total_steps, self.steps_per_epoch), self.total_steps]
        return [step for step in ends if self.evaluates(step)]

    def saves(self, step: int) -> bool:
        """True if a checkpoint is due after `step` steps."""
        if step == self.total_steps or (self.save_evaluated and self.evaluates(step)):
            return True
        return any(self._is_due(step, n) for n in (self.save_every_steps, self.steps_per_epoch * self.save_every))

    def _is_due(self, step: int, every: int | None) -> bool:
        """True for every so many steps and the last one; False if `every` is 0 or None."""
        return bool(every) and (step == self.total_steps or step % (every or 1) == 0)


def timetable_of(settings: Settings, steps_per_epoch: int) -> Timetable:
    """The timetable of a run, which ends with its epochs, train.max_steps or its phases, whichever comes first.

    Raises:
        ConfigError: a phase never starts.
    """
    lengths = [phase.length(steps_per_epoch) for phase in settings.phases]
    limits = [settings.train.max_steps, None if lengths[-1] is None else sum(length or 0 for length in lengths)]
    total = min([settings.train.epochs * steps_per_epoch, *(limit for limit in limits if limit is not None)])
    return Timetable(
        total_steps=total,
        steps_per_epoch=steps_per_epoch,
        evaluate_every=settings.eval.every_epochs,
        save_every=settings.checkpoint.every_epochs,
        save_every_steps=settings.checkpoint.every_steps,
        phase_ends=_ends(lengths, total),
        save_evaluated=settings.checkpoint.keep_best is not None,
        decode_every=settings.eval.decode_every_epochs,
    )


def _ends(lengths: Sequence[int | None], total: int) -> list[int]:
    """The step after which each phase ends; a phase without a length lasts until the end of the run."""
    ends: list[int] = []
    for number, length in enumerate(lengths):
        start = ends[-1] if ends else 0
        if start >= total:
            raise ConfigError(
                f"phases[{number}] would start after step {start}, and the run ends at step {total}; raise "
                "train.epochs or train.max_steps, or shorten the phases before it"
            )
        ends.append(total if length is None else min(total, start + length))
    return ends
