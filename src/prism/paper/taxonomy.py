"""`prism paper taxonomy`: the paper's Table 1 with its rank and parallel columns measured on our mixers.

Rank: the numerical rank of what one generic token writes into an empty memory, the largest over heads and matrices.
Parallel: Proposition 3.1 asks that A_t and B_t of S_t = S_{t-1} A_t + B_t not depend on the state. Then, and only
then, the state after any tokens is an affine function of the state before them; that is what is measured.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from prism.display.tables import show
from prism.files import write_whole
from prism.layers import MIXERS, mixer_config
from prism.layers.base.mixer import Mixer, MixerConfig, State
from prism.layers.base.parts import ShortConv
from prism.printed import TAXONOMY

DIM, HEADS, TOKENS = 32, 2, 24


@dataclass(frozen=True, kw_only=True)
class Row:
    """One mixer's line."""

    name: str
    rank: int | None
    """Measured; None for mixers that keep tokens, not matrices."""
    affine: bool | None
    """Measured: whether the later state is affine in the earlier one."""
    at_once: bool
    """Whether our code computes the whole sequence at once."""
    state_bytes: int
    """One sequence's state in float32 (after `tokens` tokens, where it grows)."""
    flops: int
    """Of one token, forward."""
    paper_rank: str
    paper_parallel: bool | None


def memories(mixer: Mixer, state: State) -> list[int]:
    """Which parts of a state are matrices of a memory, [N, H, rows, columns]: not histories, not counters."""
    histories = {part.state_shape() for part in mixer.modules() if isinstance(part, ShortConv)}
    return [
        n
        for n, part in enumerate(state)
        if part.is_floating_point() and part.ndim >= 4 and min(part.shape[-2:]) > 1
        and tuple(part.shape[-2:]) not in histories
    ]  # fmt: skip


def measured_rank(mixer: Mixer, x: Tensor) -> int | None:
    """The rank of what the first token writes; None where there is no matrix to write to."""
    _, empty = mixer(x[:, :0])
    _, after = mixer(x[:, :1])
    ranks = [
        int(torch.linalg.matrix_rank(b - _kept(a, b) * a, atol=1e-10 * float(b.norm()), rtol=0))
        for n in memories(mixer, after)
        if after[n].shape == empty[n].shape
        for a, b in zip(empty[n].flatten(0, -3), after[n].flatten(0, -3), strict=True)
    ]
    return max(ranks, default=None)


def _kept(before: Tensor, after: Tensor) -> float:
    """The decay of a memory that starts with learned content: the eigenvalue that a write of low rank leaves alone."""
    if not before.any():
        return 1.0
    if before.shape[0] > before.shape[1]:
        before, after = before.mT, after.mT
    return float(torch.linalg.eigvals(after @ torch.linalg.pinv(before)).real.median())


def is_affine(mixer: Mixer, x: Tensor) -> bool | None:
    """Whether f(½(S + S')) = ½ f(S) + ½ f(S') for the state after `x` as a function of the one before."""
    _, state = mixer(x)
    which = memories(mixer, state)
    if not which or mixer.state_size(1) != mixer.state_size(2):
        return None

    def start() -> State:
        return tuple(torch.randn_like(part) if n in which else part for n, part in enumerate(state))

    def later(before: State) -> list[Tensor]:
        after = mixer(x, before)[1]
        return [after[n] for n in which]

    first, second = start(), start()
    # where a state also holds integers (a place in a mini-batch), all three starts have the same
    middle = tuple((a + b) / 2 if n in which else a for n, (a, b) in enumerate(zip(first, second, strict=True)))
    ends = zip(later(first), later(second), later(middle), strict=True)
    return all(bool(torch.allclose((a + b) / 2, m, rtol=1e-6, atol=1e-8)) for a, b, m in ends)


def row(name: str, config: MixerConfig) -> Row:
    """Everything about one mixer, in float64 on generic input."""
    torch.manual_seed(0)
    mixer = config.build(DIM).double()
    x = torch.randn(1, TOKENS, DIM, dtype=torch.float64)
    rank, parallel = TAXONOMY.get(name.partition(",")[0], ("", None))
    with torch.no_grad():
        return Row(
            name=name,
            rank=measured_rank(mixer, x),
            affine=is_affine(mixer, x),
            at_once=mixer.parallel,
            state_bytes=4 * mixer.state_size(TOKENS),
            flops=mixer.flops(TOKENS),
            paper_rank=rank,
            paper_parallel=parallel,
        )


def rows() -> list[Row]:
    """Every mixer, and PRISM at several depths."""
    configs = {name: mixer_config(name, heads=HEADS) for name in MIXERS if name != "prism"}
    configs["ttt-linear"] = mixer_config("ttt-linear", heads=HEADS, mini_batch=1)
    configs["ttt-mlp"] = mixer_config("ttt-mlp", heads=HEADS, mini_batch=1)
    prism = mixer_config("prism", heads=HEADS)
    for steps in (1, 2, 3, 4):
        configs[f"prism, L={steps}"] = replace(prism, steps=steps)  # type: ignore[call-arg]
    return [row(name, config) for name, config in configs.items()]


def taxonomy(out: Path = Path("paper-taxonomy.json")) -> None:
    """The paper's Table 1, its rank and parallel columns measured.

    Args:
        out: Where the numbers go, as JSON.
    """
    measured = rows()
    cells = [
        [
            r.name, r.paper_rank, "–" if r.rank is None else str(r.rank), _yes_or_no(r.paper_parallel),
            _yes_or_no(r.affine), "at once" if r.at_once else "serially", f"{r.state_bytes:,}", f"{r.flops:,}",
        ]
        for r in measured
    ]  # fmt: skip
    columns = ["method", "rank (paper)", "rank measured", "parallel (paper)", "state affine", "computed"]
    title = f"D={DIM}, H={HEADS}, states after {TOKENS} tokens"
    show(title, [*columns, "state bytes", "flops/token"], cells, left=range(6))
    write_whole(out, json.dumps([asdict(r) for r in measured], indent=2).encode())
    print(f"wrote {out}")


def _yes_or_no(value: bool | None) -> str:
    return "–" if value is None else ("yes" if value else "no")
