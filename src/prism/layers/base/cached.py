"""What attention mixers share: their state is the cache, keys and values of every token and how many there are."""

from prism.layers.base.mixer import GROWS, Mixer, State
from prism.layers.base.pace import Pace, Sequences
from prism.ops.attention import Past
from prism.ops.common.packing import Packing


class Cached(Mixer):
    """A mixer that keeps every token, in H heads of width K and V. Subclasses give `mix`."""

    sequences_only = True
    H: int
    K: int
    V: int

    def opened(self, pace: Pace, state: State | None) -> tuple[Packing | None, Past | None]:
        """How the tokens are packed, and the cache before them."""
        assert isinstance(pace, Sequences)
        return pace.packing, None if state is None else Past(state[:-1], state[-1])

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Keys, values, and how many there are."""
        return (GROWS, self.H, self.K), (GROWS, self.H, self.V), ()

    def state_flops(self, length: int) -> int:
        """A product with each key and each value."""
        return 2 * self.H * (self.K + self.V) * (length + 1)
