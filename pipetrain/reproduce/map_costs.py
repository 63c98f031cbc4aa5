"""What memory and throughput come to on the page of the map, from closed forms."""

import statistics
from collections.abc import Iterable, Sequence

from pipetrain.report.text_table import markdown_table
from pipetrain.theory.closed_forms import CLOSED, ClosedForm, Position, utilization_of_gpipe

DEPTHS, _MICROBATCHES = (8, 32, 107), 8


def costs() -> Iterable[Sequence[str]]:
    """The section of the page."""
    yield ["## What memory and throughput come to"]
    yield [
        "All networks are simulated in one process, of which neither speed nor memory is that of a pipeline. What a "
        "pipeline has follows from the schedules: the weights below, in copies, the mean of all stages, and the "
        "minibatches whose activations its first stage holds. A minibatch has one microbatch; under PipeDream-2BW it "
        "has D, and its first stage holds those of one minibatch."
    ]
    shown = ("naive_async", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "stale", "pipemare",
             "timeprest", "v_timeprest", "i_timeprest")  # fmt: skip
    heads = ("", *(f"copies, D = {depth}" for depth in DEPTHS), *(f"in flight, D = {depth}" for depth in DEPTHS))
    yield markdown_table(heads, map(_cost, shown))
    gpipe, alone = ([share(depth) for depth in DEPTHS] for share in (_busy_gpipe, _busy_alone))
    yield [
        "Throughput: all of these keep every stage busy; `stale_hybrid` and `pipemare_w`, which are not among them, do "
        f"so in one of two epochs. GPipe with {_MICROBATCHES} microbatches would for "
        f"{_shares(gpipe)} of the time, and training stage by stage for {_shares(alone)}."
    ]


def _cost(method: str) -> tuple[str, ...]:
    form, whole = CLOSED[method], method == "pipedream_2bw"
    copies = [_mean_versions(form, depth, depth if whole else 1) for depth in DEPTHS]
    in_flight = [1 if whole else form.forward(Position(0, depth, 1))[-1] + 1 for depth in DEPTHS]
    return method, *(f"{count:.2f}" for count in copies), *map(str, in_flight)


def _mean_versions(form: ClosedForm, depth: int, count: int) -> float:
    return statistics.fmean(form.versions(Position(r, depth, count)) for r in range(depth))


def _busy_gpipe(depth: int) -> float:
    return utilization_of_gpipe(depth, _MICROBATCHES)


def _busy_alone(depth: int) -> float:
    return 1 / depth


def _shares(shares: Sequence[float]) -> str:
    *first, last = (f"{share:.0%}" for share in shares)
    return f"{', '.join(first)} and {last}"
