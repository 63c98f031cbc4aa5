"""Further update rules from their papers for `reference.Run`; shares no code with pipetrain.

PipeOptim's next step is the last one made, and so each rule here just remembers it, whatever went into it.
"""

from dataclasses import dataclass

import torch


@dataclass
class Repeating:
    """An update rule: weights minus the learning rate times a direction, which the gradient and a memory give."""

    decay: float = 0.0
    slots: int = 1

    def start(self, weights):
        none = [0 * w for w in weights]
        return {"n": 0, "memory": [[0 * w] * self.slots for w in weights], "last": none}

    def step(self, weights, gradients, state, lr):
        """(new weights, new state)."""
        n, seen = state["n"] + 1, [g + self.decay * w for g, w in zip(gradients, weights, strict=True)]
        found = [self.direction(n, g, *memory) for g, memory in zip(seen, state["memory"], strict=True)]
        last, memory = [direction for direction, *_ in found], [list(rest) for _, *rest in found]
        moved = [w - lr * self.rate(n) * d for w, d in zip(weights, last, strict=True)]
        return moved, {"n": n, "memory": memory, "last": last}

    def delta(self, state):
        """The last step again, at the rate that the next one has."""
        return [self.rate(state["n"] + 1) * direction for direction in state["last"]]

    def rate(self, _n):
        return 1.0


@dataclass
class Nesterov(Repeating):
    """The gradient and the momentum after it (Sutskever et al. 2013, in torch's form)."""

    mu: float = 0.9

    def direction(self, _n, g, v):
        v = self.mu * v + g
        return g + self.mu * v, v

    def torch_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.0, momentum=self.mu, weight_decay=self.decay, nesterov=True)


@dataclass
class RMSprop(Repeating):
    """The gradient over the root of its mean square, or over its deviation; momentum sums such quotients."""

    slots: int = 3
    alpha: float = 0.9
    eps: float = 1e-3
    mu: float = 0.0
    centered: bool = False

    def direction(self, _n, g, square, mean, buffer):
        square = self.alpha * square + (1 - self.alpha) * g * g
        mean = self.alpha * mean + (1 - self.alpha) * g
        spread = square - mean * mean if self.centered else square
        buffer = self.mu * buffer + g / (torch.sqrt(spread) + self.eps)
        return buffer, square, mean, buffer

    def torch_optimizer(self, parameters):
        settings = {"alpha": self.alpha, "eps": self.eps, "momentum": self.mu, "centered": self.centered}
        return torch.optim.RMSprop(parameters, lr=0.0, weight_decay=self.decay, **settings)


@dataclass
class Adagrad(Repeating):
    """The gradient over the root of the sum of all squares (Duchi et al. 2011), at a rate that falls by itself."""

    fall: float = 0.05
    eps: float = 1e-3

    def direction(self, _n, g, total):
        total = total + g * g
        return g / (torch.sqrt(total) + self.eps), total

    def rate(self, n):
        return 1 / (1 + (n - 1) * self.fall)

    def torch_optimizer(self, parameters):
        return torch.optim.Adagrad(parameters, lr=0.0, lr_decay=self.fall, weight_decay=self.decay, eps=self.eps)


@dataclass
class NAdam(Repeating):
    """Adam's quotient with next step's share of the mean and this step's share of the gradient (Dozat 2016)."""

    slots: int = 2
    beta1: float = 0.8
    beta2: float = 0.95
    eps: float = 1e-6
    psi: float = 0.3

    def direction(self, n, g, m, u):
        m = self.beta1 * m + (1 - self.beta1) * g
        u = self.beta2 * u + (1 - self.beta2) * g * g
        shares = [self.beta1 * (1 - 0.96 ** (k * self.psi) / 2) for k in range(1, n + 2)]
        all_but_last = torch.tensor(shares[:-1], dtype=torch.float64).prod()
        ahead = shares[-1] * m / (1 - all_but_last * shares[-1]) + (1 - shares[-2]) * g / (1 - all_but_last)
        return ahead / (torch.sqrt(u / (1 - self.beta2**n)) + self.eps), m, u

    def torch_optimizer(self, parameters):
        settings = {"betas": (self.beta1, self.beta2), "eps": self.eps, "momentum_decay": self.psi}
        return torch.optim.NAdam(parameters, lr=0.0, weight_decay=self.decay, **settings)
