"""Whether the model knows every token of the data set."""

from pipetrain.config.settings import Settings
from pipetrain.data.fetch import Fetch
from pipetrain.data.token_ids import TokenRange
from pipetrain.errors import ConfigError
from pipetrain.run.build import Data
from pipetrain.run.first_samples import read_some


def check_tokens(settings: Settings, data: Data, tokens: TokenRange) -> None:
    """Holds the data set's vocabulary against the model's, or where it tells none as many samples as there is time for.

    The others are looked at when they are read.

    Raises:
        ConfigError: the model's is smaller.
    """
    if tokens.known is None:
        for loader, split in ((data.train, "train"), (data.evaluation, "eval")):
            fetch = Fetch(loader.dataset, loader.seed, inputs=True, targets=False, tokens=tokens.of(split))
            read_some(fetch, loader.samples_per_epoch)
    elif tokens.known > (rows := min(tokens.rows.values())):
        raise ConfigError(
            f"model._target_={settings.model.target.path}: its vocabulary has {rows} tokens, and that of the data set "
            f"{tokens.known}; make a model for {tokens.known}"
        )
