"""Pipeline training written out from the papers' formulas for stacks of Linear and tanh; shares no code with pipetrain.

Every part keeps all its weight versions for ever, so the loop runs over minibatches in order: by the formulas below
minibatch t needs no version above t. The backward is derived by hand, since autograd would not compute a forward with
one version and its backward with another.
"""

import math
from collections.abc import Callable
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

    def decayed(self, weights, state, rates):
        """The weights after updates with these learning rates and no gradient; SGD's take the first rate alone."""
        v, m = state["v"], state["m"]
        for n, lr in enumerate(rates, state["n"] + 1):
            if state["n"] == 0:
                break
            if self.kind == "momentum":
                v = [self.mu * each for each in v]
                weights = [w - rates[0] * each for w, each in zip(weights, v, strict=True)]
                continue
            decay = self.decay if self.kind == "adam" else 0.0
            m = [self.beta1 * a + (1 - self.beta1) * decay * w for a, w in zip(m, weights, strict=True)]
            roots = [torch.sqrt(u) / math.sqrt(1 - self.beta2**n) + self.eps for u in state["u"]]
            rate = lr / (1 - self.beta1**n)
            weights = [w - rate * a / root for w, a, root in zip(weights, m, roots, strict=True)]
        return weights

    def torch_optimizer(self, parameters):
        """The like-named one of torch."""
        if self.kind in ("sgd", "momentum"):
            momentum = self.mu if self.kind == "momentum" else 0.0
            return torch.optim.SGD(parameters, lr=0.0, momentum=momentum, weight_decay=self.decay)
        make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[self.kind]
        betas = (self.beta1, self.beta2)
        return make(parameters, lr=0.0, betas=betas, eps=self.eps, weight_decay=self.decay)


@dataclass
class Stage:
    """One stage: its weights [W, b, W, b, ...], optimizer states and PipeMare's δ by version.

    tanh follows all layers but the output.
    """

    versions: list
    states: list
    drifts: list
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


def one_f_one_b(D, r):
    return D - r


def pipelined_backprop(D, r):
    return 2 * (D - 1 - r) + 1


def pipemare(D, r):
    return 2 * (D - 1 - r) + 2


def one_f_one_b_of_depth_6(D, r):
    return 1 + 5 * (D - 1 - r) // (D - 1) if D > 1 else 1


def v_until_gradients(D, r):
    """Forwards that stage r of a V has begun when W of the first one begins, with one unit for each F, B and W.

    Stages r and D - 1 - r share a process, which takes six operations a period. F and B follow those of the
    neighboring stage at once; where they would collide, the last stage waits for two units before its B. The W of both
    stages wait for the idle units, equally long.
    """
    turn = next(
        wait
        for wait in range(6)
        if all(len({t % 6 for s in (p, D - 1 - p) for t in (s, 2 * D - 1 - s + wait)}) == 4 for p in range(D // 2))
    )
    taken = {t % 6 for s in (r, D - 1 - r) for t in (s, 2 * D - 1 - s + turn)}
    b, other = (2 * D - 1 - s + turn for s in (r, D - 1 - r))
    w = next(b + wait for wait in range(1, 7) if not taken & {(b + wait) % 6, (other + wait) % 6})
    return math.ceil((w - r) / 6)


def v_of_short_w_until_gradients(D, r):
    """As `v_until_gradients` where F, B and W last 3, 3 and 2 units: a table."""
    return {2: (1, 1), 4: (3, 2, 1, 1), 6: (3, 3, 2, 2, 1, 1)}[D][r]


def interleaved_newest(t, j, N, D, r):
    """Updates of stage r before F(t, j) under interleaved 1F1B without a flush, two stages in each process.

    Counts along the list of the process: warm-up, then a forward and a backward in turn, in rounds of D / 2.
    """
    P = D // 2

    def place(k, backward):
        """(chunk, microbatch) of the k-th forward or backward of a process."""
        turn, within = divmod(k, 2 * P)
        return abs(backward - within // P), turn * P + within % P

    warm_up, done, k = 2 * (P - 1 - r % P) + P, 0, 0
    while place(k, 0) != (r // P, t * N + j):
        if k >= warm_up:
            done += place(k - warm_up, 1)[0] == r // P
        k += 1
    return done // N


@dataclass(frozen=True)
class Formulas:
    """What a method reads under a schedule, as the papers say it.

    Attributes:
        in_flight: (D, r) -> forwards of a stage whose backward is not done: of microbatches, or of minibatches that go
            back whole.
        newest: (t, j, N, D, r) -> updates of the stage before F(t, j), where they do not follow from `in_flight`.
        synchronous: every operation of minibatch t reads version t.
        whole_backward: one backward goes back for all N microbatches.
        double_buffered: F reads the version before the minibatch's own.
        of_first_stage: F reads the version that the minibatch met on the first stage.
        random_age: F reads a version of the age that was drawn, or an older one.
        stashes: B reads the version that F read.
        shrinkage: λ, where B scales that version by 2 - e^(λ · age).
        predicts: F predicts the weights by as many updates as B will be ahead.
        prediction: with s times the next rate, `scheduled` with the sum of the next s, or `decaying` without gradients.
        extrapolates: F moves on by the last change of the weights, as many times as updates come before B.
        half_round: F and B predict r // 2 updates further.
        decay: Dc of T2, where B reads W - τ · δ.
        anneal: K of T1, where the learning rate is divided by τ^(1 - k/K).
        scales: what the learning rate of each stage is multiplied by.
        by_delay: K of T1 with the largest staleness of F as τ, at least 1.
    """

    in_flight: Callable[[int, int], int] = one_f_one_b
    newest: Callable[[int, int, int, int, int], int] | None = None
    synchronous: bool = False
    whole_backward: bool = False
    double_buffered: bool = False
    of_first_stage: bool = False
    random_age: bool = False
    stashes: bool = False
    shrinkage: float | None = None
    predicts: bool = False
    prediction: str = "constant"
    extrapolates: bool = False
    half_round: bool = False
    decay: float | None = None
    anneal: int | None = None
    scales: tuple[float, ...] | None = None
    by_delay: int | None = None

    def newest_at_forward(self, t, j, N, D, r):
        """Updates of the stage before F(t, j), counted from the last drain."""
        if self.synchronous:
            return t
        if self.newest is not None:
            return self.newest(t, j, N, D, r)
        d = self.in_flight(D, r) - 1
        return max(0, t - d) if self.whole_backward else max(0, (t * N + j - d) // N)

    def version_of_forward(self, t, j, N, D, r):
        """The version that F(t, j) reads, or starts from, counted from the last drain."""
        if self.double_buffered:
            return max(0, t - 1)
        return self.newest_at_forward(t, j, N, D, 0 if self.of_first_stage else r)


FORMULAS = {
    "sequential": Formulas(synchronous=True),
    "gpipe": Formulas(synchronous=True),
    "pipedream_flush": Formulas(synchronous=True),
    "naive_async": Formulas(),
    "pipedream": Formulas(stashes=True),
    "vertical_sync": Formulas(of_first_stage=True, stashes=True),
    "pipeoptim": Formulas(predicts=True),
    "pipedream_2bw": Formulas(double_buffered=True, stashes=True),
    "spectrain": Formulas(predicts=True, half_round=True),
    "stale": Formulas(pipelined_backprop),
    "pipemare_plain": Formulas(pipemare),
    "pipemare_t1": Formulas(pipemare, anneal=7),
    "pipemare_t2": Formulas(pipemare, decay=0.3),
    "pipemare": Formulas(pipemare, anneal=7, decay=0.3),
    "timeprest": Formulas(whole_backward=True, of_first_stage=True),
    "v_timeprest": Formulas(whole_backward=True),
    "i_timeprest": Formulas(whole_backward=True, stashes=True, shrinkage=0.05),
    "pipedream_pipemare": Formulas(pipemare, stashes=True),
    "pipeoptim_backprop": Formulas(pipelined_backprop, predicts=True),
    "lwp_stash": Formulas(extrapolates=True, stashes=True),
    "spectrain_depth": Formulas(one_f_one_b_of_depth_6, predicts=True, half_round=True),
}
"""The formulas of each method and schedule that the registry of `support.methods` names."""


def delay(N, D, r):
    """τ of PipeMare, i = r + 1 and P = D: ceil((2(P - i) + 1) / N)."""
    return math.ceil((2 * (D - r - 1) + 1) / N)


def lead(segments, D, r):
    """Microbatch steps from R to B: 2(L - 1 - i) for stage i of L in its segment; `segments` are the first stages."""
    first = max(s for s in segments if s <= r)
    behind = min([s for s in segments if s > r], default=D)
    return 2 * ((behind - first) - 1 - (r - first))


@dataclass
class Run:
    """A pipeline in training: phase after phase, epoch after epoch.

    Attributes:
        stages: one part for each.
        optimizers: the update rule of each stage.
        rate: the learning rate of update k of the run.
        N: microbatches of a minibatch.
        segments: the first stages of segments that recompute; None where nothing is recomputed.
        tau: (stage, minibatch of the run) -> the delay that hogwild drew.
    """

    stages: list
    optimizers: list
    rate: object
    N: int
    segments: object = None
    tau: object = None
    formulas: Formulas | None = None
    updates: int = 0  # of the run
    drained: int = 0  # updates of the run at the last drain
    began: int = 0  # updates of the run at the start of the phase
    losses: list = field(default_factory=list)

    @classmethod
    def of(cls, parts, optimizer, rate, N, segments=None, tau=None):
        """`parts` is a list of weight lists, one for each stage; `optimizer` may be a list, too."""
        rules = optimizer if isinstance(optimizer, list) else [optimizer] * len(parts)
        stages = [
            Stage([w], [rules[r].start(w)], [[0 * each for each in w]], r == len(parts) - 1)
            for r, w in enumerate(parts)
        ]
        return cls(stages, rules, rate, N, segments, tau)

    @property
    def newest(self):
        """The newest weights of all stages."""
        return [stage.versions[-1] for stage in self.stages]

    def phase(self, formulas, epochs):
        """`epochs` are lists of minibatches (x, y); the pipeline drains after each. T1's k and T2's δ begin anew.

        `formulas` are those of a name in `FORMULAS`, or any others.
        """
        self.formulas = FORMULAS[formulas] if isinstance(formulas, str) else formulas
        self.began = self.updates
        for stage in self.stages:
            stage.drifts[-1] = [0 * w for w in stage.versions[0]]
        for minibatches in epochs:
            self.drained = self.updates
            for t, (x, y) in enumerate(minibatches):
                self.losses.append(self._minibatch(x, y, t))
                self._update()
        return self

    # -- what a stage reads, t, j and versions counted from the last drain ---------------------------------------

    def _predicted(self, r, version, steps):
        """W - steps · lr · Δ, lr that of the next update."""
        stage, now = self.stages[r], self.drained + version
        rates = [self._rate(r, now + i) for i in range(steps)]
        if self.formulas.prediction == "decaying":
            return self.optimizers[r].decayed(stage.versions[now], stage.states[now], rates)
        delta, ahead = self.optimizers[r].delta(stage.states[now]), steps * self._rate(r, now)
        if self.formulas.prediction == "scheduled":
            ahead = sum(rates)
        return [w - ahead * d for w, d in zip(stage.versions[now], delta, strict=True)]

    def _corrected(self, r, version, steps):
        """W - steps · δ."""
        stage, now = self.stages[r], self.drained + version
        return [w - steps * d for w, d in zip(stage.versions[now], stage.drifts[now], strict=True)]

    def _plain(self, r, version):
        return self.stages[r].versions[self.drained + version]

    def _forward_weights(self, r, t, j):
        read = self._forward_version(r, t, j)
        if self.formulas.extrapolates:
            return self._corrected(r, read, read - t)
        if not self.formulas.predicts:
            return self._plain(r, read)
        return self._predicted(r, read, t - read + (r // 2 if self.formulas.half_round else 0))

    def _forward_version(self, r, t, j):
        read = self.formulas.version_of_forward(t, j, self.N, len(self.stages), r)
        return max(0, min(read, t - self.tau(r, self.drained + t))) if self.formulas.random_age else read

    def _backward_weights(self, r, t, j):
        formulas, read = self.formulas, self._forward_version(r, t, j)
        if formulas.shrinkage is not None:
            return [(2 - math.exp(formulas.shrinkage * (t - read))) * w for w in self._plain(r, read)]
        if formulas.stashes:
            return self._forward_weights(r, t, j)
        if formulas.half_round:
            return self._predicted(r, t, r // 2)
        if formulas.decay is not None:
            return self._corrected(r, t, delay(self.N, len(self.stages), r))
        return self._plain(r, t)

    def _recomputation_weights(self, r, t, j):
        D, formulas = len(self.stages), self.formulas
        steps = lead(self.segments, D, r)
        now = t if formulas.synchronous else max(0, (t * self.N + j - steps) // self.N)
        if formulas.stashes:
            return self._forward_weights(r, t, j)
        if formulas.half_round:
            return self._predicted(r, now, r // 2)
        if formulas.decay is not None:
            return self._corrected(r, now, delay(self.N, D, r) - math.ceil(steps / self.N))
        return self._plain(r, now)

    def _rate(self, r, update):
        """The learning rate of a stage's update, counted from the start of the run."""
        rate, k, formulas = self.rate(update), update - self.began, self.formulas
        if formulas.anneal is not None:
            rate /= delay(self.N, len(self.stages), r) ** (1 - min(k / formulas.anneal, 1))
        if formulas.scales is not None:
            rate *= formulas.scales[r]
        if formulas.by_delay is not None:
            late = 1000
            tau = max(1, late - formulas.version_of_forward(late, 0, self.N, len(self.stages), r))
            rate /= tau ** (1 - min(k / formulas.by_delay, 1))
        return rate

    # -- a minibatch ---------------------------------------------------------------------------------------------

    def _minibatch(self, x, y, t):
        loss = 0.0
        for stage in self.stages:
            stage.gradient = [0 * w for w in stage.versions[0]]
        sizes = [len(x) // self.N + (j < len(x) % self.N) for j in range(self.N)]
        for j, (xs, ys) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
            share = sizes[j] / len(x)
            inputs, kept, value = [], [], xs
            for r, stage in enumerate(self.stages):
                inputs.append(value)
                value, saved = stage.forward(self._forward_weights(r, t, j), value)
                kept.append(saved)
            loss += share * cross_entropy(value, ys)[0]
            if self.segments is not None:
                kept, value = self._again(inputs, t, j)
            g = share * cross_entropy(value, ys)[1]
            for r in reversed(range(len(self.stages))):
                stage = self.stages[r]
                found, g = stage.backward(self._backward_weights(r, t, j), kept[r], g)
                stage.gradient = [a + b for a, b in zip(stage.gradient, found, strict=True)]
        return loss

    def _again(self, inputs, t, j):
        """What the stages keep after recomputing, each segment from the input of its first stage; the last's result."""
        kept, value = [], None
        for r, stage in enumerate(self.stages):
            value, saved = stage.forward(
                self._recomputation_weights(r, t, j), inputs[r] if r in self.segments else value
            )
            kept.append(saved)
        return kept, value

    def _update(self):
        for r, stage in enumerate(self.stages):
            old, rate = stage.versions[-1], self._rate(r, self.updates)
            weights, state = self.optimizers[r].step(old, stage.gradient, stage.states[-1], rate)
            stage.versions.append(weights)
            stage.states.append(state)
            gamma = (self.formulas.decay or 0.0) ** (1 / delay(self.N, len(self.stages), r))
            stage.drifts.append(
                [gamma * d + (1 - gamma) * (w - o) for d, w, o in zip(stage.drifts[-1], weights, old, strict=True)]
            )
        self.updates += 1


def cross_entropy(scores, truth):
    """(the mean over samples, its gradient)."""
    shifted = scores - scores.max(1, keepdim=True).values
    log_probabilities = shifted - shifted.exp().sum(1, keepdim=True).log()
    wanted = torch.zeros_like(scores)
    wanted[torch.arange(len(truth)), truth] = 1.0
    loss = -(log_probabilities * wanted).sum().item() / len(truth)
    return loss, (log_probabilities.exp() - wanted) / len(truth)
