"""`split` where `executors.stage_runner` imports it from."""

from pipetrain.engine.data.minibatches import split as split
