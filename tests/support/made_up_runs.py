"""Runs of a comparison that are made up instead of trained."""

import math
from pathlib import Path

from pipetrain.reporting.comparison.contenders import Contender, distinguished
from pipetrain.reporting.comparison.costs import Costs
from pipetrain.reporting.comparison.tuning import Grid, around
from pipetrain.reporting.steps_to_loss import LossCurve
from pipetrain.reporting.sweep.compared_run import ComparedRun, Point

STEPS = 100


def contender(method, *words, step_s=0.01, memory=1000, fits=True, metric="loss", **others):
    words = (f"method={method}", *words)
    given = {
        "words": words,
        "settings": {"checkpoint.metric": metric, **dict(word.split("=") for word in words)},
        "cut": "0,1",
        "key": f"{words}",
        "grid": Grid((around("optimizer.lr", 0.1),), extends=True),
        "steps": STEPS,
        "estimated_s": 1.0,
        "cores": 1,
        "costs": Costs(((STEPS, step_s),), memory, fits=fits),
    }
    return Contender(**{**given, **others})


def contenders(*methods):
    return distinguished([contender(method) for method in methods])


def falling(rate, steps=STEPS):
    """A run whose training loss falls from 1 by `rate` a step, and whose evaluation at the end is that loss."""
    losses = LossCurve([float(step) for step in range(1, steps + 1)], [1 - rate * step for step in range(1, steps + 1)])
    return {"status": "completed", "final": {"loss": losses.losses[-1]}, "losses": losses}


def evaluated(*values):
    """A run whose top1 is evaluated after equal parts of its steps."""
    points = [Point(epoch=n, step=STEPS * n // len(values), value=value) for n, value in enumerate(values, 1)]
    return {"status": "completed", "final": {"top1": values[-1]}, "curves": {"top1": points}}


DIVERGED = {"status": "diverged", "reason": "diverged: the loss of step 7 is nan"}
FAILED = {"status": "failed", "reason": "out of memory"}


def made_up(planned, settings, facts):
    """The run of these settings and facts."""
    known = {"numbers": {"steps": STEPS}, "lower_is_better": ("loss", "perplexity")}
    return ComparedRun(Path(planned.name), settings=settings, **{**known, **facts})


class MadeUpRuns:
    """In place of `Runs`.

    Args:
        result_of: what a planned run comes to.
        most: number of runs after which the time is over.
    """

    def __init__(self, result_of, most=math.inf):
        self.result_of, self.most = result_of, most
        self.order, self.results = [], {}

    @property
    def started(self):
        return len(self.order)

    def result(self, planned):
        return self.results.get(planned.name)

    @property
    def newest(self):
        return self.order[-1] if self.order else None

    def left_s(self, coming):
        return float(len(coming))

    def carry_out(self, every, show):
        for planned in every:
            show()
            if planned.name not in self.results:
                if self.started >= self.most:
                    return False
                self.order.append(planned)
                self.results[planned.name] = made_up(planned, {"seed": planned.seed}, self.result_of(planned))
        return True
