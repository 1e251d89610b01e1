"""One probe run: a small model of any mixer, trained to a budget of steps on one task, judged at the last token.

The loop is its own and not the general one: a probe is a matter of seconds, its data never repeat (so that there are
no epochs), it stops when the task is solved, and what counts is where training got to, not the best moment of it.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.config import Checked, Count, Fraction, Natural, NotNegative, Positive
from prism.errors import DivergedError
from prism.layers.base.initial import initialise
from prism.layers.base.mixer import MixerConfig
from prism.layers.prism import PrismConfig
from prism.models.backbone import BackboneConfig
from prism.probes.tasks.base import VOCABULARY, Examples, Probe

Schedule = Literal["cosine", "constant"]
# Batches drawn at once: the generators' cost is in their calls.
_AHEAD = 32
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class ProbeModelConfig(Checked):
    """The paper's small model."""

    mixer: MixerConfig | tuple[MixerConfig, ...] = field(default_factory=lambda: PrismConfig(heads=2))
    """The mixer of every block, or one for each."""
    dim: Count = 16
    """Width D."""
    layers: Count = 2
    """Blocks."""
    ffn: Natural = 0
    """Hidden width of the SwiGLU in each block. 0, none: with it every mixer has a nonlinearity that is not its own."""
    vocabulary: int = VOCABULARY
    """Different tokens, and labels."""

    def build(self) -> "ProbeModel":
        """A model, its weights drawn from torch's generator."""
        return ProbeModel(self)


class ProbeModel(nn.Module):
    """Tokens in, logits of the label out."""

    def __init__(self, config: ProbeModelConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        initialise(self.embedding)
        self.backbone = BackboneConfig(dim=config.dim, layers=config.layers, mixer=config.mixer, ffn=config.ffn).build()
        self.head = nn.Linear(config.dim, config.vocabulary)
        initialise(self.head)

    def forward(self, tokens: Int[Tensor, "N T *fields"], *, everywhere: bool = False) -> Float[Tensor, "N *T classes"]:
        """Only the last position answers, or all do; a token that is a set is the sum of its members."""
        x = self.embedding(tokens)
        features, _ = self.backbone(x if tokens.ndim == 2 else x.sum(-2), last=not everywhere)
        return self.head(features if everywhere else features[:, -1])


@dataclass(frozen=True, kw_only=True)
class ProbeTraining(Checked):
    """How a probe is trained, the same for every mixer and task."""

    steps: Count = 1500
    """Updates at most."""
    batch: Count = 64
    """Examples per update, all of them new; while sequences are shorter, as many more as make the same tokens."""
    lr: Positive = 1e-2
    """The learning rate after warm-up."""
    warmup: Count = 100
    """Updates in which the learning rate rises."""
    schedule: Schedule = "cosine"
    """What the learning rate does after it has risen: it falls to 0 along a cosine, or stays."""
    growing: Fraction = 0.8
    """Share of the updates with shorter sequences, doubled in equal stages; 0: all have the task's length.
    What is learned among a few noise tokens holds among many, and is found sooner: more answers for the same tokens."""
    first: Count = 16
    """Tokens of the shortest of them at least."""
    beta2: Fraction = 0.98
    """AdamW's decay of squared gradients."""
    weight_decay: NotNegative = 0.0
    """AdamW's pull of every weight to 0."""
    clip: Positive = 1.0
    """The longest gradient that is not shortened."""
    every: Count = 100
    """Updates between looks at the accuracy."""
    watched: Count = 512
    """Examples of such a look, other ones than those of the final test; of a task that is tested at other lengths too
    a share of them, at the next of these lengths."""
    tested: Count = 2048
    """Examples of the final test."""
    solved: Positive = 0.998
    """Training ends when two looks in a row see this accuracy."""

    def rate(self, step: int) -> float:
        """The learning rate of an update, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup)
        left = (1 + math.cos(math.pi * step / self.steps)) / 2 if self.schedule == "cosine" else 1.0
        return self.lr * rise * left

    def stage(self, probe: Probe, step: int) -> Probe:
        """The task at the length that an update sees."""
        least = max(self.first, probe.shortest)
        doublings = max(0, math.ceil(math.log2(probe.length / least)))  # stages before the last, of the full length
        grown = step / self.steps
        if not doublings or grown >= self.growing:
            return probe
        left = doublings - int(grown / self.growing * doublings)
        return replace(probe, length=max(least, probe.length >> left))

    def growths(self, probe: Probe) -> list[int]:
        """The updates after which sequences are longer."""
        lengths = [self.stage(probe, step).length for step in range(self.steps)]
        return [step for step in range(1, self.steps) if lengths[step] != lengths[step - 1]]


@dataclass(frozen=True, kw_only=True)
class Look:
    """The run as it stood after some updates."""

    step: int
    loss: float
    """Mean over the updates since the look before."""
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What one run came to."""

    accuracy: float
    """On the final test, of the last weights."""
    solved_at: int | None
    """Updates until the first of two looks in a row that saw the task solved; None: never."""
    steps: int
    seconds: float
    parameters: int
    curve: list[Look]
    longer: dict[str, float] = field(default_factory=dict)
    """Accuracy at other lengths, by the number of tokens."""

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "ProbeResult":
        return cls(**record | {"curve": [Look(**look) for look in record["curve"]]})


def run_probe(
    probe: Probe,
    model: ProbeModelConfig,
    training: ProbeTraining,
    *,
    seed: int = 0,
    device: torch.device = CPU,
    watch: Callable[[Look], None] | None = None,
) -> tuple[ProbeResult, ProbeModel]:
    """Trains a model drawn from `seed` on examples drawn from `seed`; `watch` hears of every look."""
    torch.manual_seed(seed)
    net = model.build().to(device)
    began, curve, losses = time.perf_counter(), [], []
    optimiser = torch.optim.AdamW(net.parameters(), betas=(0.9, training.beta2), weight_decay=training.weight_decay)
    watched = watching(probe, training, seed)
    for step, (tokens, labels) in enumerate(batches(probe, training, seed)):
        losses.append(_update(net, optimiser, tokens.to(device), labels.to(device), training.rate(step), training.clip))
        if (step + 1) % training.every and step + 1 < training.steps:
            continue
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss} by step {step + 1}: try a smaller lr, now {training.lr}")
        curve.append(Look(step=step + 1, loss=loss, accuracy=accuracy(net, watched, device)))
        losses.clear()
        if watch is not None:
            watch(curve[-1])
        if _solved(curve, training.solved) == curve[-2:]:
            break
    pair = _solved(curve, training.solved)
    result = ProbeResult(
        accuracy=accuracy(net, probe.draw(training.tested, seed=seed, split="test", batch=1), device),
        solved_at=pair[0].step if pair else None,
        steps=curve[-1].step,
        seconds=time.perf_counter() - began,
        parameters=sum(part.numel() for part in net.parameters()),
        curve=curve,
        longer={
            str(long.length): accuracy(
                net, long.draw(max(1, training.tested // times), seed=seed, split="test", batch=1), device
            )
            for times in probe.longer
            for long in [replace(probe, length=times * probe.length)]
        },
    )
    return result, net


def watching(probe: Probe, training: ProbeTraining, seed: int) -> Examples:
    """What the looks see; of a task that is tested at other lengths too, fewer and longer sequences.

    What is tracked goes on getting better at other lengths long after it is solved at its own.
    """
    times = min(probe.longer, default=1)
    longer = replace(probe, length=times * probe.length)
    return longer.draw(max(1, training.watched // times), seed=seed, split="test", batch=0)


def batches(probe: Probe, training: ProbeTraining, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and labels of every update."""
    for ahead in range(-(-training.steps // _AHEAD)):
        now = training.stage(probe, ahead * _AHEAD)
        many = training.batch * probe.length // now.length
        tokens, labels = (
            torch.from_numpy(part).split(many) for part in now.draw(_AHEAD * many, seed=seed, batch=ahead)
        )
        yield from list(zip(tokens, labels, strict=True))[: training.steps - ahead * _AHEAD]


def _update(
    net: ProbeModel, optimiser: torch.optim.Optimizer, tokens: Tensor, labels: Tensor, lr: float, clip: float
) -> Float[Tensor, ""]:
    logits = net(tokens, everywhere=labels.ndim == 2)
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), clip)
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.step()
    return loss.detach()


def _solved(curve: list[Look], enough: float) -> list[Look]:
    """The first two looks in a row that saw the task solved."""
    for n in range(1, len(curve)):
        if min(curve[n - 1].accuracy, curve[n].accuracy) >= enough:
            return curve[n - 1 : n + 1]
    return []


@torch.no_grad()
def accuracy(net: nn.Module, examples: Examples, device: torch.device = CPU) -> float:
    """The share of examples whose label has the highest logit."""
    right = 0
    for tokens, labels in zip(*(torch.from_numpy(part).split(256) for part in examples), strict=True):
        asked = labels if labels.ndim == 1 else labels[:, -1]
        right += int((net(tokens.to(device)).argmax(-1).cpu() == asked).sum())
    return right / len(examples.labels)
