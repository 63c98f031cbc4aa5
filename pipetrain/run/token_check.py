"""Whether the model knows every token of the data set."""

from pipetrain.config.settings import Settings
from pipetrain.data.ranges import TokenRange
from pipetrain.errors import ConfigError


def check_vocabulary(settings: Settings, tokens: TokenRange) -> None:
    """Holds the data set's vocabulary, where it tells of one, against the model's.

    Raises:
        ConfigError: the model's is smaller.
    """
    rows = min(tokens.rows.values())
    if tokens.known is not None and tokens.known > rows:
        raise ConfigError(
            f"model._target_={settings.model.target.path}: its vocabulary has {rows} tokens, and that of the data set "
            f"{tokens.known}; make a model for {tokens.known}"
        )
