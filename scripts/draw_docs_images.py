"""Redraws the schedules in docs/images: the operation lists that run, with forwards and backwards of equal length.

python scripts/draw_docs_images.py [NAME ...]
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipetrain.reporting.timeline.drawing import draw
from pipetrain.reporting.timeline.from_settings import GivenTimes, phase_timeline, titled_phases
from pipetrain.reporting.timeline.panels import Panel

_IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
_D4 = "partition.stages=4"
_DEPTHS = ("", " schedule.depth=2", " schedule.depth=7")
_N2, _N4 = (f"{_D4} train.microbatches={count}" for count in (2, 4))
_SYNCHRONOUS = [f"method=sequential {_N4}", f"method=gpipe {_N4}", f"method=pipedream_flush {_N4}"]
_CUTS = "partition=explicit partition.boundaries=[4,8,13] train.recompute_boundaries=[0,8]"
_DRAWN: dict[str, tuple[int, list[str]]] = {
    "schedules": (28, [f"method=gpipe {_N4}", f"method=pipeoptim {_N4}"]),
    "all_schedules": (
        28,
        [
            *_SYNCHRONOUS,
            *(f"method=pipedream {_N4}{depth}" for depth in _DEPTHS),
        ],
    ),
    "microbatches": (28, [f"method=pipeoptim {_N2}"]),
    "replicas": (
        28,
        [f"method={m} partition.stages=2 partition.replicas=[2,1]" for m in ("pipedream", "gpipe")],
    ),
    "recomputation": (28, [f"method=pipemare train.recompute=true {_D4}", f"method=pipemare {_CUTS}"]),
    "methods/synchronous": (22, _SYNCHRONOUS),
    "methods/naive_async": (24, [f"method=naive_async {_D4}"]),
    "methods/pipedream": (24, [f"method=pipedream {_D4}"]),
    "methods/pipedream_pipemare": (26, [f"method=pipedream schedule=pipemare {_D4}"]),
    "methods/pipedream_vertical_sync": (24, [f"method=pipedream method.vertical_sync=true {_D4}"]),
    "methods/pipedream_2bw": (28, [f"method=pipedream_2bw {_N4}"]),
    "methods/spectrain": (24, [f"method=spectrain {_D4}"]),
    "methods/pipeoptim": (24, [f"method=pipeoptim {_D4}"]),
    "methods/stale": (24, [f"method=stale {_D4}"]),
    "methods/stale_hybrid": (24, [f"method=stale_hybrid {_D4}"]),
    "methods/pipemare": (26, [f"method=pipemare {_D4}"]),
    "methods/pipemare_w": (28, [f"method=pipemare_w {_N4}"]),
    "methods/timeprest": (27, [f"method=timeprest {_N2}"]),
    "methods/v_timeprest": (27, [f"method=v_timeprest {_N2}"]),
    "methods/i_timeprest": (27, [f"method=i_timeprest {_N2}"]),
    "methods/hogwild": (40, [f"method=hogwild {_D4}"]),
    "methods/delayed": (40, [f"method=delayed method.delay=[3,2,1,0] {_D4}"]),
    "methods/lwp": (24, [f"method=lwp {_D4}"]),
}
"""Image -> how many forwards long it is, and the settings of its panels, whose microbatches are equally large."""


def write(name: str, path: Path) -> None:
    """Draws the image of this name."""
    length, settings = _DRAWN[name]
    draw(path, [panel for each in settings for panel in _panels(each, length)])


def _panels(settings: str, length: int) -> Iterator[Panel]:
    """So many minibatches that the pipeline goes on at the right border."""
    for title, phase in titled_phases(settings.split()):
        count = length + phase.rules.num_stages
        panel, _ = phase_timeline(title, phase, count, GivenTimes(backward=[1.0]))
        yield replace(panel, end=float(length))


if __name__ == "__main__":
    for name in sys.argv[1:] or _DRAWN:
        path = _IMAGES / f"{name}.svg"
        write(name, path)
        print(path)
