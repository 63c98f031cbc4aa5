"""Pipeline training written out from the papers' formulas for stacks of Linear and tanh; shares no code with pipetrain.

Every part keeps all its weight versions for ever, so the loop runs over minibatches in order: by the formulas below
minibatch t needs no version above t. The backward is derived by hand, since autograd would not compute a forward with
one version and its backward with another.
"""

from dataclasses import dataclass, field

import torch


@dataclass
class Optimizer:
    """The update rule of one part, with what PipeOptim's table I calls its next step; states are kept by version."""

    kind: str  # "sgd", "momentum", "adam" or "adamw"
    decay: float = 0.0
    mu: float = 0.9
    beta1: float = 0.8
    beta2: float = 0.95
    eps: float = 1e-6

    def start(self, weights):
        return {"n": 0, "v": [0 * w for w in weights], "m": [0 * w for w in weights], "u": [0 * w for w in weights]}

    def step(self, weights, gradients, state, lr):
        """(new weights, new state)."""
        n, raw = state["n"] + 1, gradients
        if self.kind != "adamw":
            gradients = [g + self.decay * w for g, w in zip(gradients, weights, strict=True)]
        new = {"n": n, "v": raw, "m": state["m"], "u": state["u"]}
        if self.kind == "sgd":
            return [w - lr * g for w, g in zip(weights, gradients, strict=True)], new
        if self.kind == "momentum":
            new["v"] = [self.mu * v + g for v, g in zip(state["v"], gradients, strict=True)]
            return [w - lr * v for w, v in zip(weights, new["v"], strict=True)], new
        new["m"] = [self.beta1 * m + (1 - self.beta1) * g for m, g in zip(state["m"], gradients, strict=True)]
        new["u"] = [self.beta2 * u + (1 - self.beta2) * g * g for u, g in zip(state["u"], gradients, strict=True)]
        shrink = 1 - lr * self.decay if self.kind == "adamw" else 1.0
        return [shrink * w - lr * d for w, d in zip(weights, self.delta(new), strict=True)], new

    def delta(self, state):
        """The next step per unit of learning rate, from a state alone; 0 before the first update."""
        if state["n"] == 0 or self.kind in ("sgd", "momentum"):
            return state["v"]
        first, second = 1 - self.beta1 ** state["n"], 1 - self.beta2 ** state["n"]
        return [(m / first) / (torch.sqrt(u / second) + self.eps) for m, u in zip(state["m"], state["u"], strict=True)]

    def torch_optimizer(self, parameters):
        """The like-named one of torch."""
        if self.kind in ("sgd", "momentum"):
            momentum = self.mu if self.kind == "momentum" else 0.0
            return torch.optim.SGD(parameters, lr=0.0, momentum=momentum, weight_decay=self.decay)
        make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[self.kind]
        betas = (self.beta1, self.beta2)
        return make(parameters, lr=0.0, betas=betas, eps=self.eps, weight_decay=self.decay)


@dataclass
class Part:
    """One stage: its weights [W, b, W, b, ...] and optimizer states by version; tanh follows all but the output."""

    versions: list
    states: list
    output: bool
    gradient: list = field(default_factory=list)

    def forward(self, weights, x):
        """(result, what the backward needs): each layer's input, and its output where tanh follows."""
        kept, pairs = [], list(zip(weights[::2], weights[1::2], strict=True))
        for i, (weight, bias) in enumerate(pairs):
            z = x @ weight.T + bias
            y = z if self.output and i == len(pairs) - 1 else torch.tanh(z)
            kept.append((x, None if y is z else y))
            x = y
        return x, kept

    def backward(self, weights, kept, g):
        """(gradients of the weights, gradient of the input), with activations of the forward and these weights."""
        found = []
        for weight, (x, y) in zip(reversed(weights[::2]), reversed(kept), strict=True):
            g = g if y is None else g * (1 - y * y)
            found += [g.sum(0), g.T @ x]
            g = g @ weight
        return found[::-1], g


def version_read(rule, t, j, N, D, r):
    """(version of F, version of B), counted from the last drain."""
    k = t * N + j
    newest = max(0, (k - (D - 1 - r)) // N)
    entered = max(0, (k - (D - 1)) // N)
    if rule in ("sequential", "gpipe", "pipedream_flush"):
        return t, t
    return {
        "naive_async": (newest, t),
        "pipedream": (newest, newest),
        "vertical_sync": (entered, entered),
        "pipeoptim": (newest, t),
    }[rule]


def train(rule, parts, optimizer, rate, epochs, N):
    """Losses of all steps; `epochs` are lists of minibatches (x, y), the pipeline drains after each.

    `parts` is a list of weight lists, one for each stage; afterwards it holds the newest weights.
    """
    stages = [Part([w], [optimizer.start(w)], r == len(parts) - 1) for r, w in enumerate(parts)]
    losses, base = [], 0
    for minibatches in epochs:
        for t, (x, y) in enumerate(minibatches):
            losses.append(_minibatch(rule, stages, optimizer, rate, x, y, N, base, t))
        base += len(minibatches)
    for r, stage in enumerate(stages):
        parts[r] = stage.versions[-1]
    return losses


def _minibatch(rule, stages, optimizer, rate, x, y, N, base, t):
    count, loss = len(stages), 0.0
    for stage in stages:
        stage.gradient = [0 * w for w in stage.versions[0]]
    sizes = [len(x) // N + (j < len(x) % N) for j in range(N)]
    for j, (xs, ys) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
        share, kept, value = sizes[j] / len(x), [], xs
        for r, stage in enumerate(stages):
            read, _ = version_read(rule, t, j, N, count, r)
            weights = stage.versions[base + read]
            if rule == "pipeoptim" and t > read:
                ahead = (t - read) * rate(base + read)
                delta = optimizer.delta(stage.states[base + read])
                weights = [w - ahead * d for w, d in zip(weights, delta, strict=True)]
            value, saved = stage.forward(weights, value)
            kept.append(saved)
        shifted = value - value.max(1, keepdim=True).values
        log_probabilities = shifted - shifted.exp().sum(1, keepdim=True).log()
        truth = torch.zeros_like(value)
        truth[torch.arange(len(ys)), ys] = 1.0
        loss += share * -(log_probabilities * truth).sum().item() / len(ys)
        g = share * (log_probabilities.exp() - truth) / len(ys)
        for r in reversed(range(count)):
            _, read = version_read(rule, t, j, N, count, r)
            found, g = stages[r].backward(stages[r].versions[base + read], kept[r], g)
            stages[r].gradient = [a + b for a, b in zip(stages[r].gradient, found, strict=True)]
    for stage in stages:
        weights, state = optimizer.step(stage.versions[-1], stage.gradient, stage.states[-1], rate(base + t))
        stage.versions.append(weights)
        stage.states.append(state)
    return loss
