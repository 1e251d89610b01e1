"""One token through all blocks in one compiled call, for stacks of PRISM or of Gated DeltaNet mixers on the CPU."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prism.layers.base.dropout import Dropout
from prism.layers.base.mixer import State
from prism.layers.base.parts import DecayRate, GatedRead, ShortConv
from prism.layers.deltanet import GatedDeltaNet
from prism.layers.prism import Prism
from prism.layers.prism.fields import OF_THE_EQUATION, PrismFields
from prism.models.block import Block, SwiGLU
from prism.ops.common.backends import compiles
from prism.ops.common.precision import autocasts

Arrays = tuple[Any, ...]
# Fields of PRISM that the compiled call knows at their defaults alone.
FIXED = ("forget", "reflect", *(name for name in OF_THE_EQUATION if not name.endswith("_start")))
# Modules whose calls the compiled one stands for: of these very classes, as a wrapper of one computes something else.
PLAIN = frozenset(
    (Block, SwiGLU, Prism, GatedDeltaNet, ShortConv, GatedRead, DecayRate, Dropout, nn.Linear, nn.RMSNorm, nn.LayerNorm)
)
# One array per block: the last inputs of its convolution, and S; the first axis is the sequence.
StackState = tuple[Arrays, Arrays]


class OneToken:
    """The weights of a stack, packed; they are copied, and `fresh` tells whether the stack's have changed since.

    Writes through `.data` tell no one: after them the stack is to be put into training mode and back.
    """

    def __init__(self, blocks: Sequence[Block], norm: nn.RMSNorm):
        from prism.ops.cpu import stack

        self._modules = _modules(blocks, norm)
        parts = (own for module in self._modules for own in (module._modules, module._parameters))
        self._held = [(own, name, part) for own in parts for name, part in own.items()]
        self._parameters = [p for module in self._modules for p in module.parameters(recurse=False)]
        self._key = versions(self._parameters)
        mixers = [block.mixer for block in blocks]
        self.layers, self._conv = len(blocks), getattr(mixers[0], "conv", None) is not None
        self._shapes = mixers[0].state_shapes()
        self._rest = _rest(blocks, norm)
        self._kernel: Any
        if isinstance(mixers[0], Prism):
            self._kernel, (self._shape, self._weights) = stack.prism_stack, _prism(mixers)
        else:
            self._kernel, (self._shape, self._weights) = stack.gated_delta_stack, _gated_delta(mixers)
        packed = (*self._weights, *self._rest)
        self._work = 2 * self.layers * sum(x[0].size for x in packed) + sum(s.size for s in self.empty(1)[1])

    @staticmethod
    def fits(blocks: Sequence[Block], norm: nn.RMSNorm) -> bool:
        """Whether the compiled call computes what these blocks do: all alike, of a kind that it knows, on the CPU."""
        mixers = [block.mixer for block in blocks]
        alike = {(type(mixer), mixer.config) for mixer in mixers if isinstance(mixer, Prism | GatedDeltaNet)}
        weight = next(blocks[0].parameters())
        return (
            all(type(mixer) in (Prism, GatedDeltaNet) for mixer in mixers)
            and all(not isinstance(mixer, Prism) or _known(mixer.config) for mixer in mixers)
            and len(alike) == 1
            and weight.device.type == "cpu"
            and weight.dtype in (torch.float32, torch.float64)
            and all(type(module) in PLAIN and _untouched(module) for module in _modules(blocks, norm))
            and compiles("prism.ops.cpu.delta.backend", weight.dtype)
        )

    def fresh(self) -> bool:
        """Whether the packed weights are still those of the stack, and its modules the ones that were packed."""
        return (
            all(own.get(name) is part for own, name, part in self._held)
            and all(map(_untouched, self._modules))
            and self._key == versions(self._parameters)
        )

    def usable(self, x: Tensor) -> bool:
        """Whether this input can be given to it now."""
        weight = self._parameters[0]
        return x.dtype == weight.dtype and x.device.type == "cpu" and not autocasts("cpu")

    def empty(self, count: int) -> StackState:
        """The states of so many sequences before their first token."""
        dtype = self._rest.norm.dtype
        *history, S = self._shapes
        window = history[0] if history else (0, 1)
        made = [tuple(np.zeros((count, *shape), dtype) for _ in range(self.layers)) for shape in (window, S)]
        return made[0], made[1]

    def advance(self, x: Any, rows: Any, before: StackState, after: StackState, to: Any = None) -> Any:
        """Features [N, D] of x [N, D]; sequence n's state is row rows[n] of `before`, and then row to[n] of `after`.

        Without `to` these rows are the same; and so may the arrays be. No row may be listed twice.
        """
        from prism.ops.cpu import threads

        y = np.empty_like(x)
        given = (x, rows, rows if to is None else to, self._shape, self._weights, self._rest, before, after, y)
        if len(x) == 1:
            self._kernel(*given, 0, 1)
        else:
            threads.run(lambda begin, end: self._kernel(*given, begin, end), np.full(len(x), self._work))
        return y

    def step(self, x: Tensor, state: Sequence[State] | None) -> tuple[Tensor, list[State]]:
        """As `Backbone.step`: a new state, the one given stays as it is."""
        before = self.empty(len(x)) if state is None else self._open(state)
        after = self._like(before)
        y = self.advance(x.detach().contiguous().numpy(), np.arange(len(x)), before, after)
        if not self._conv:
            return torch.from_numpy(y), [(torch.from_numpy(S),) for S in after[1]]
        pairs = zip(*after, strict=True)
        return torch.from_numpy(y), [(torch.from_numpy(h), torch.from_numpy(S)) for h, S in pairs]

    def _open(self, state: Sequence[State]) -> StackState:
        S = tuple(part[-1].detach().contiguous().numpy() for part in state)
        if not self._conv:
            return self.empty(len(S[0]))[0], S
        return tuple(part[0].detach().contiguous().numpy() for part in state), S

    def _like(self, state: StackState) -> StackState:
        return tuple(np.empty_like(x) for x in state[0]), tuple(np.empty_like(x) for x in state[1])


def _modules(blocks: Sequence[Block], norm: nn.RMSNorm) -> list[nn.Module]:
    return [*norm.modules(), *(module for block in blocks for module in block.modules())]


def _untouched(module: nn.Module) -> bool:
    """Whether a call of the module is what its class says: no hook, no forward of its own."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def versions(weights: Iterable[Tensor]) -> tuple[Any, ...]:
    """What differs once any of the weights has been written to or has moved."""
    return tuple((w.data_ptr(), -1 if w.is_inference() else w._version, w.dtype) for w in weights)


def _known(config: PrismFields) -> bool:
    """Whether the compiled call has PRISM's choices: what it cannot vary must be as by default."""
    return all(getattr(config, name) == getattr(PrismFields, name) for name in FIXED)


def _stacked(tensors: Sequence[Tensor]) -> Any:
    return np.ascontiguousarray(torch.stack([x.detach() for x in tensors]).numpy())


def _maps(maps: Sequence[nn.Linear]) -> Any:
    """[layers, in, out]."""
    return _stacked([x.weight.mT for x in maps])


def _rest(blocks: Sequence[Block], norm: nn.RMSNorm) -> Any:
    from prism.ops.cpu.stack import Rest

    weight = norm.weight.detach()
    none = weight.new_zeros(len(blocks), 0, len(weight)).numpy()
    empty = weight.new_zeros(len(blocks), 0).numpy()
    ffn = [block.ffn for block in blocks if block.ffn is not None]
    return Rest(
        norm=_stacked([block.norm.weight for block in blocks if block.norm is not None]),
        out=_maps([block.mixer.out for block in blocks]),
        ffn_norm=_stacked([block.ffn_norm.weight for block in blocks if block.ffn_norm is not None]) if ffn else empty,
        ffn_in=_maps([one.project for one in ffn]) if ffn else none.transpose(0, 2, 1).copy(),
        ffn_out=_maps([one.out for one in ffn]) if ffn else none,
        last_norm=weight.numpy(),
    )


def _prism(mixers: Sequence[Any]) -> tuple[Any, Any]:
    from prism.ops.cpu.stack import PrismWeights

    one: Prism = mixers[0]
    config, dim = one.config, one.dim
    solved = _places(one.lifted or one.sizes)
    writes = {"steps": config.steps, "writes": config.writes, "free_keys": config.free_keys}
    kinds = {"subtracts": int(config.residual == "subtract"), "gelu": int(config.nonlinearity == "gelu")}
    shape = _shape(one, keys=solved.get("keys", 0), gain=solved.get("gain", 0), **writes, **kinds)
    like = one.project.weight.detach()
    none = like.new_zeros
    n = len(mixers)
    weights = PrismWeights(
        conv=_stacked([x.conv.weight.mT for x in mixers]) if one.conv is not None else none(n, 0, dim).numpy(),
        anchor_norm=_stacked([torch.stack([x.norm.weight, x.norm.bias]) for x in mixers]),
        project=_maps([x.project for x in mixers]),
        lift=_maps([x.solver for x in mixers]) if one.solver is not None else none(n, 0, 0).numpy(),
        decay_bias=_stacked([x.decay_bias for x in mixers]),
        gain_bias=_stacked([x.gain_bias for x in mixers])
        if one.gain_bias is not None
        else none(n, config.heads, 0, one.V).numpy(),
        read_norm=_stacked([x.read.norm.weight for x in mixers]),
    )
    return shape, weights


def _gated_delta(mixers: Sequence[Any]) -> tuple[Any, Any]:
    from prism.ops.cpu.stack import GatedDeltaWeights

    one: GatedDeltaNet = mixers[0]
    shape = _shape(one, steps=0, writes=1, free_keys=0, keys=0, gain=0, subtracts=0, gelu=0)
    weights = GatedDeltaWeights(
        conv=_stacked([x.conv.weight.mT for x in mixers]),
        project=_maps([x.project for x in mixers]),
        decay_rate=_stacked([x.decay.log_rate.exp() for x in mixers]),
        decay_bias=_stacked([x.decay.bias for x in mixers]),
        read_norm=_stacked([x.read.norm.weight for x in mixers]),
    )
    return shape, weights


def _shape(one: Prism | GatedDeltaNet, **solver: int) -> Any:
    """Sizes, where the parts of the projection begin (-1: it has none), and what the solver does."""
    from prism.ops.cpu.stack import PrismShape

    at, sizes = _places(one.sizes), {"H": one.config.heads, "K": one.K, "V": one.V}
    begin = {name: at.get(name, -1) for name in ("gate", "beta", "decay", "anchor", "low")}
    return PrismShape(**sizes, **begin, **solver)


def _places(sizes: dict[str, int]) -> dict[str, int]:
    """Where each part of a projection begins."""
    ends = np.cumsum([0, *sizes.values()]).tolist()
    return dict(zip(sizes, ends, strict=False))
