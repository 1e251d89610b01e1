"""What all runs of one table of probes share, and the recipes that give it: ours, and that of the released code."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from prism.config import Checked, Count, NotNegative
from prism.layers.spelling import spelled_mixers
from prism.probes.tasks.base import Probe
from prism.probes.tasks.spelling import probe_kind, spelled_probe
from prism.probes.training import ProbeModelConfig, ProbeTraining


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(Checked):
    """Model and training, the same for all mixers and seeds of a table."""

    dim: Count = 16
    """Width D of the logic and control tasks."""
    length: Count = 128
    """Tokens of a sequence."""
    memory_dim: Count = 32
    """Width D of the memory tasks: at 16 PRISM was far from MQAR when the budget ended (docs/probing.md)."""
    memory_length: Count | None = None
    """Tokens of the memory tasks' sequences; None: as the others."""
    tracking_dim: Count = 64
    """Width D of the tracking tasks."""
    tracking_length: Count = 32
    """Tokens of a tracking task's sequences in training; they are tested at 4 and 16 times as many."""
    tracking_layers: Count = 1
    """Blocks of the tracking tasks: one, so that what is tracked is tracked by the recurrence."""
    layers: Count = 2
    """Blocks."""
    heads: Count = 2
    """Heads of every mixer."""
    ffn: NotNegative = 0.0
    """Hidden width of the SwiGLU in each block as a multiple of D; 0: none, as the paper's numbers imply
    (docs/probing.md)."""
    training: Annotated[ProbeTraining, tyro.conf.arg(name="")] = field(default_factory=ProbeTraining)
    """How every run is trained."""

    def probe(self, task: str) -> Probe:
        """A task, as it is spelled, at its length."""
        memory = self.length if self.memory_length is None else self.memory_length
        lengths = {"tracking": self.tracking_length, "memory": memory}
        return spelled_probe(task, lengths.get(probe_kind(task).kind, self.length))

    def model(self, probe: Probe, mixer: str) -> ProbeModelConfig:
        layers = self.tracking_layers if probe.kind == "tracking" else self.layers
        dim = {"memory": self.memory_dim, "tracking": self.tracking_dim}.get(probe.kind, self.dim)
        return ProbeModelConfig(
            mixer=spelled_mixers(mixer, layers, heads=self.heads),
            dim=dim,
            layers=layers,
            ffn=round(self.ffn * dim),
            vocabulary=probe.vocabulary,
        )


Recipe = Literal["ours", "released"]
# The released script trains each model with AdamW at a constant 1e-3 on 10,000 batches of 32, with an MLP of 4 D and
# GELU in every block (here a SwiGLU of as many weights), one head, D = 128 and N = 64 for the memory tasks. Its
# vocabulary of 32 is not taken over: the paper prints 64, and the tasks here are the paper's.
RECIPES: dict[Recipe, ProbeSettings] = {
    "ours": ProbeSettings(),
    "released": ProbeSettings(
        memory_dim=128,
        heads=1,
        ffn=8 / 3,
        memory_length=64,
        training=ProbeTraining(
            steps=10_000,
            batch=32,
            lr=1e-3,
            warmup=1,
            schedule="constant",
            growing=0.0,
            beta2=0.999,
            weight_decay=1e-4,
            clip=5.0,
        ),
    ),
}


def recipe_defaults(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings that the other options of a command line start from: those of its `--recipe`."""
    for n, word in enumerate(arguments):
        option, sign, value = word.partition("=")
        name = value if sign else arguments[n + 1] if n + 1 < len(arguments) else ""
        if option == "--recipe" and name in RECIPES:
            return {"settings": RECIPES[name]}  # type: ignore[index]
    return {}
