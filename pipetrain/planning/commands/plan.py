"""`pipetrain plan`: the pipeline that is fastest on given devices, by the profile of a model."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_settings_parser
from pipetrain.runner.terminal.output_folder import check_writable

if TYPE_CHECKING:
    from pipetrain.planning.profile.profile import Profile
    from pipetrain.runner.config.settings import Settings

_DESCRIPTION = """\
Finds the stages and the replicas of each that train a model fastest on the devices of topology.*, by PipeDream's
dynamic program over its layer graph. The model is measured under the settings of `pipetrain run`, or read from
profile=FILE, which needs neither model nor data. Prints the plan beside data parallelism and a straight pipeline, and
writes plan.json, which partition=file trains, and plan.png."""
_EPILOG = """\
For example: pipetrain plan model=resnet56 topology.devices=4 method=pipedream
             pipetrain plan profile=resnet56.json topology.workers=[8,2] topology.gigabytes_per_s=[30,3.125]
             pipetrain plan profile=graph.txt planner.straight=true topology.memory_gigabytes=16 train.recompute=true"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `plan`."""
    parser = add_settings_parser(
        subparsers, "plan", "model=resnet56 topology.devices=4",
        help="find the stages and replicas that train a model fastest", description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder to write to; default plan, plan-2, ..."
    )
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Plans, prints the table, and writes the plan and its picture.

    Raises:
        ConfigError: a setting cannot work, or no plan fits into the devices' memory.
    """
    from pipetrain.planning.costs.topology import core_notes
    from pipetrain.planning.planner import Planner
    from pipetrain.planning.tables.plan_comparison import ComparedPlan, Comparison, draw_comparison
    from pipetrain.runner.config.composition import composed_one
    from pipetrain.runner.tracking.files import new_folder, write_whole

    output: Path | None = options.output
    check_writable(f"-o {output or 'plan'}", output or Path("plan"))
    settings = composed_one(options.words, options.config_dir)
    profile = chosen_profile(settings)
    planner = Planner.of(profile, settings)
    plans = {"data parallel": planner.data_parallel(), "straight": planner.straight_pipeline(), "best": planner.best()}
    rows = [ComparedPlan(name, plan, planner.fits(plan)) for name, plan in plans.items() if plan is not None]
    notes = [*profile.notes, *core_notes(settings, profile, planner.topology, planner.topology.num_devices)]
    batch_size = profile.batch_size or settings.train.batch_size
    comparison = Comparison(profile, planner.topology, rows, batch_size, notes)
    print(*comparison.lines(), sep="\n")
    folder = output or new_folder(Path("plan"))
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "plan.json", json.dumps(comparison.best.to_json(), indent=1) + "\n")
    draw_comparison(folder / "plan.png", comparison)
    print(f"written to {folder}: plan.json, plan.png")
    return ExitCode.COMPLETED


def chosen_profile(settings: "Settings") -> "Profile":
    """The profile in the file that `profile` names, else of the model that the settings choose.

    Raises:
        ConfigError: the file is no profile, or the model or its data cannot be built.
    """
    from pipetrain.planning.profile.profile_file import read_profile

    if settings.profile is not None:
        return read_profile(Path(settings.profile))
    # from here on torch is needed, which takes seconds to import
    from pipetrain.planning.profiling.profile import profile_of

    return profile_of(settings)
