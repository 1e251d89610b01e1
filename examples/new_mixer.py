"""A mixer of one's own under the contract of `prism.layers.base.mixer`: RetNet's retention, in thirty lines.

Whole sequences, packed sequences and one token at a time all come from the one method `mix`; the probes, the backbone
and the measurements take it like the mixers that ship.

    python examples/new_mixer.py
    PYTHONPATH=examples prism probe mux --mixers new_mixer:Retention:longest=64 prism

Commands, saved runs and Hugging Face configs take `module:Class`, or a name: one that `MIXERS.register` gave it in this
process, or one that its package gives it in pyproject.toml:

    [project.entry-points."prism.mixers"]
    retention = "new_mixer:Retention"
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism import MIXERS, mixer_config
from prism.layers.base.mixer import Mixer, MixerConfig, State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import GatedRead, half_lives
from prism.ops.delta.rule import delta_rule_flops
from prism.probes.tasks.base import PROBES
from prism.probes.training import ProbeModelConfig, ProbeTraining, run_probe


@dataclass(frozen=True, kw_only=True)
class RetentionConfig(MixerConfig):
    """S_t = γ S_{t−1} + v kᵀ, γ fixed, one for each head."""

    longest: float = 512.0
    """Half-life of the slowest head, in tokens."""


class Retention(Mixer):
    """Retention: linear attention that forgets at a fixed pace."""

    Config = RetentionConfig

    def __init__(self, dim: int, config: RetentionConfig):
        super().__init__(dim)
        self.config, self.size = config, config.head_size(dim, None, "heads to a divisor of dim")
        self.project = nn.Linear(dim, 4 * dim, bias=False)
        self.read = GatedRead(self.size)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("decay", half_lives(config.heads, longest=config.longest))

    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Linear maps, one recurrence, a gated read."""
        q, k, v, gate = self.project(x).chunk(4, -1)
        q, k, v = (part.unflatten(-1, (self.config.heads, self.size)) for part in (q, k, v))
        one = torch.ones_like(v[..., 0])
        decay = nn.functional.logsigmoid(self.decay).expand_as(one)
        write = Write(q=q, k=k * self.size**-0.5, v=v, beta=one, log_alpha=decay, erase=torch.zeros_like(one))
        o, S = pace.run(write, None if state is None else state[0])
        return self.out(self.read(o, gate)), (S,)

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """S of every head."""
        return ((self.config.heads, self.size, self.size),)

    def state_flops(self, length: int) -> int:
        """Decay, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.size, self.size, erasures=0)


def main() -> None:
    torch.manual_seed(0)
    layer = RetentionConfig(heads=2).build(32)
    x = torch.randn(1, 50, 32)
    whole, _ = layer(x)
    state: State | None = None
    for t in range(50):
        token, state = layer.step(x[:, t], state)
    print("a token at a time less the whole sequence:", float((token - whole[:, -1]).abs().max().detach()))

    MIXERS.register("retention", Retention)
    model = ProbeModelConfig(mixer=mixer_config("retention", heads=2))
    result, _ = run_probe(PROBES["mux"](length=16), model, ProbeTraining(steps=200, batch=32, every=50, tested=512))
    print(f"MUX after {result.steps} updates: accuracy {result.accuracy:.3f}, {result.parameters:,} parameters")


if __name__ == "__main__":
    main()
