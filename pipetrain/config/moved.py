"""Classes and functions that have moved within pipetrain, so that stored runs and users' scripts still find them."""

from typing import Any

from pipetrain.config.instantiate import TARGET

MOVED: dict[str, str] = {
    "pipetrain.planner.automatic.Automatic": "pipetrain.planner.partition.automatic.AutoPartition",
    "pipetrain.planner.finegrained.FineGrained": "pipetrain.planner.partition.finegrained.FineGrained",
    "pipetrain.planner.partition_rules.Even": "pipetrain.planner.partition.rules.Even",
    "pipetrain.planner.partition_rules.Explicit": "pipetrain.planner.partition.rules.Explicit",
    "pipetrain.planner.partition_rules.Ppv": "pipetrain.planner.partition.rules.Ppv",
    "pipetrain.planner.stored_plan.Stored": "pipetrain.planner.partition.from_file.PartitionFromPlan",
}
"""Former path -> present path. An entry stays for as long as runs that name the former path are to load."""


def with_present_paths(content: Any) -> Any:
    """A copy of a configuration, or of part of one, in which every moved target has its present path."""
    if isinstance(content, dict):
        return {
            key: MOVED.get(value, value) if key == TARGET and isinstance(value, str) else with_present_paths(value)
            for key, value in content.items()
        }
    return [with_present_paths(each) for each in content] if isinstance(content, list) else content
