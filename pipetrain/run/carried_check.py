"""Whether a model that carries state from minibatch to minibatch gets minibatches that follow one another."""

from pipetrain.data.loader import Loader
from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain
from pipetrain.models.stateful_layer import stateful_layers


def check_carried(chain: LayerChain, loaders: dict[str, Loader]) -> None:
    """Checks that row b of each minibatch continues row b of the one before, where layers go on from there.

    Args:
        chain: the model.
        loaders: what reads each split, by its name.

    Raises:
        ConfigError: the layers would go on with the state of other rows.
    """
    labels = [label for label, layer in zip(chain.labels, chain.layers, strict=True) if stateful_layers(layer)]
    if not labels:
        return
    carries = f"model: layer {labels[0]} carries its state from minibatch to minibatch, and the minibatches of `"
    for name, loader in loaders.items():
        if not getattr(loader.dataset, "ordered", False):
            raise ConfigError(
                f"{carries}{name}` do not continue one another; running text in rows works: a data set whose splits "
                "are `ordered`, such as dataset=austen dataset.carried=true"
            )
        sizes = set(loader.sizes(0))
        if len(sizes) > 1:
            few, many = min(sizes), max(sizes)
            raise ConfigError(f"{carries}{name}` have {few} to {many} rows; as many in each are needed")
