"""What is added to the logits of a softmax: features that are known, times weights that are learned; exponentials."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from prism.ops.cpu.softmax import normalise

_BANKS = WeakTensorKeyDictionary()  # of each bank, its copies by device


class Additions(NamedTuple):
    """Features of (token, item): sparse entries of K kinds, and F rows of a bank for each token.

    Column k < K of the weights multiplies the entries of kind k, column K + f the bank's row `rows[:, f]`.
    """

    starts: Int[Tensor, " N_and_1"]
    """The entries of token n are starts[n] … starts[n + 1] − 1; no two of one kind have the same item."""
    items: Int[Tensor, " E"]
    kinds: Int[Tensor, " E"]
    values: Float[Tensor, " E"]
    bank: Float[Tensor, "R I"]
    rows: Int[Tensor, "N F"]

    def to(self, device: torch.device) -> "Additions":
        """The same on a device; the bank, which all batches have in common, is copied there once."""
        kept = _BANKS.setdefault(self.bank, {})
        if device not in kept:
            kept[device] = self.bank.to(device)
        return Additions(*(kept[device] if part is self.bank else part.to(device) for part in self))


class Block(NamedTuple):
    """Of a block of tokens: e^{logit − top}, their sums, −log p(target), and the gradients of the experts' weights."""

    e: Tensor
    mass: Tensor
    losses: Tensor
    dweights: Tensor


def _compiles(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


class Exponentials:
    """Logits to exponentials, a block of tokens at a time, with what is added to the logits; compiled on a CPU."""

    def __init__(self, x: Tensor, items: int, added: Additions | None, weights: Tensor | None):
        self.of = _nothing(x, items) if added is None else added
        self.weights = x.new_empty(len(x), 0) if weights is None else weights.detach()
        self.kinds = self.weights.shape[1] - self.of.rows.shape[1]
        self.compiled = _compiles(x)
        if self.compiled:
            bank = self.of.bank.to(x.dtype)
            self.arrays = tuple(part.numpy() for part in self.of._replace(bank=bank))
        else:
            count = torch.arange(self.of.items.numel(), device=x.device)
            self.token = torch.searchsorted(self.of.starts, count, right=True) - 1

    def of_block(self, logits: Tensor, targets: Tensor, part: slice, trained: bool) -> Block:
        """The logits' memory is used anew."""
        found = torch.empty_like(self.weights[part])
        if not self.compiled:
            return self._by_torch(logits, targets, part, found)
        mass, losses = logits.new_empty(len(logits), 1), logits.new_empty(len(logits))
        numbers = (self.weights.numpy(), targets.numpy(), trained, losses.numpy(), mass[:, 0].numpy(), found.numpy())
        normalise(logits.numpy(), part.start, self.arrays, *numbers)
        return Block(logits, mass, losses, found)

    def _by_torch(self, logits: Tensor, targets: Tensor, part: slice, found: Tensor) -> Block:
        token, item, kind, value = self._entries(part)
        weights, rows, bank = self.weights[part], self.of.rows[part], self.of.bank
        logits.view(-1).index_add_(0, token * logits.shape[1] + item, value * weights[token, kind])
        for f in range(rows.shape[1]):
            logits.addcmul_(bank[rows[:, f]], weights[:, self.kinds + f, None])
        picked = logits.gather(1, targets[part, None])
        top = logits.amax(1, keepdim=True)
        e = logits.sub_(top).exp_()
        mass = e.sum(1, keepdim=True)
        excess = e.view(-1)[token * e.shape[1] + item] / mass[token, 0] - (item == targets[part][token]).to(e.dtype)
        found.zero_().view(-1).index_add_(0, token * found.shape[1] + kind, excess * value)
        for f in range(rows.shape[1]):
            expected = (e[:, None] @ bank[rows[:, f]][..., None])[:, 0, 0] / mass[:, 0]
            found[:, self.kinds + f] = expected - bank[rows[:, f], targets[part]]
        return Block(e, mass, (mass.log() + top - picked)[:, 0], found)

    def _entries(self, part: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(token within the block, item, kind, value) of each entry; those of other blocks have a value of 0.

        How many are of this block only the device knows, and the host need not wait for it.
        """
        here = (self.token >= part.start) & (self.token < part.stop)
        values = torch.where(here, self.of.values.to(self.weights.dtype), 0.0)
        token = (self.token - part.start).remainder(part.stop - part.start)
        return token, self.of.items.long(), self.of.kinds.long(), values


def _nothing(x: Tensor, items: int) -> Additions:
    numbers = {"device": x.device, "dtype": torch.int32}
    starts, rows = x.new_zeros(len(x) + 1, dtype=torch.long), x.new_empty(len(x), 0, dtype=torch.long)
    entries = torch.empty(0, **numbers), x.new_empty(0, dtype=torch.int8), x.new_empty(0)  # type: ignore[call-overload]
    return Additions(starts, *entries, x.new_empty(0, items), rows)
