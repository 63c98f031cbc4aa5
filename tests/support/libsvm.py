"""A small regression data set, and its file in LIBSVM format."""

import gzip

import numpy as np


def regression_samples():
    """Inputs and targets of 256 samples, whose three features differ in scale."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((256, 3)) @ np.diag([1.0, 10.0, 300.0])
    return inputs, inputs @ [1.0, -0.3, 0.02] + random.standard_normal(256)


def write_libsvm(path, inputs, targets):
    """Writes the samples, with a fourth feature that never changes, as a gzip-compressed file; returns its path."""
    rows = zip(inputs, targets, strict=True)
    text = "".join(f"{y} " + " ".join(f"{i}:{v}" for i, v in enumerate(x, 1)) + " 4:7\n" for x, y in rows)
    path.write_bytes(gzip.compress(text.encode()))
    return path
