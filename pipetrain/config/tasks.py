"""What models and data sets are for: a choice of the one goes with a choice of the other if their task is the same."""

from typing import TYPE_CHECKING

from pipetrain.config.choices import choice_of, choices_of, choices_of_run, names_of, section
from pipetrain.config.instantiate import TARGET
from pipetrain.errors import ConfigError

if TYPE_CHECKING:
    from pipetrain.config.settings import Settings


def task_of(group: str, name: str) -> str:
    """The task of a data set, or that of the one which a model brings, such as "translation"."""
    dataset = name if group == "dataset" else choices_of_run({"model": name})["dataset"]
    return choice_of("dataset", dataset).remarks["task"]


def check_tasks(settings: "Settings") -> None:
    """Checks that the chosen model can learn from the chosen data set; of a user's own nobody knows.

    Raises:
        ConfigError: they are for different tasks.
    """
    if not (_is_bundled(settings, "model") and _is_bundled(settings, "dataset")):
        return
    model, dataset = settings.choices["model"], settings.choices["dataset"]
    task, other = task_of("model", model), task_of("dataset", dataset)
    if task != other:
        fitting = [each.name for each in choices_of("dataset") if each.remarks["task"] == task]
        raise ConfigError(
            f"model={model} dataset={dataset}: the model is for {task}, and the data set for {other}; data sets for "
            f"{task} are {', '.join(fitting)}"
        )


def _is_bundled(settings: "Settings", group: str) -> bool:
    """Whether model or data set is the choice's own, and no other under its name."""
    name = settings.choices.get(group, "")
    path = (settings.model if group == "model" else settings.dataset).target.path
    return name in names_of(group) and section(group, name)[TARGET] == path
