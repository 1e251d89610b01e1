"""Pictures of `prism paper theory`: what was measured as marks, what bounds it as a dashed line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from prism.display.figures import COLOURS, pyplot, save_figure
from prism.paper.theory.linear import Anchors, Degeneracy, Forgetting
from prism.paper.theory.trained import Amortisation, Slopes

BLUE, RED, GREEN = COLOURS[:3]


def _panels(count: int, width: float = 4.6) -> tuple[Any, Any]:
    plt = pyplot()
    figure, axes = plt.subplots(1, count, figsize=(width * count, 3.7), squeeze=False)
    return figure, axes[0]


def _finish(path: Path, figure: Any, axes: Any) -> None:
    for axis in axes:
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    save_figure(path, figure)


def ranks(path: Path, found: Mapping[str, Sequence[int]]) -> None:
    """Rank of one token's write over L."""
    figure, axes = _panels(1)
    depth = np.arange(1, len(found["independent"]) + 1)
    axes[0].plot(depth, depth, "--", color="#7f7f7f", label="bound L")
    axes[0].plot(depth, found["independent"], "o", color=RED, label="independent keys")
    axes[0].plot(depth, found["shared"], "s", color=BLUE, label="one shared key")
    axes[0].set(title="rank of one token's write", xlabel="refinement steps L", ylabel="rank")
    _finish(path, figure, axes)


def errors(path: Path, found: Forgetting) -> None:
    """Perturbed forgetting and perturbed writing over T."""
    figure, axes = _panels(2)
    axes[0].plot(found.lags, found.envelope_bound, "--", color="#7f7f7f", label="bound, ln T")
    axes[0].plot(found.lags, found.envelope, color=RED, label="worst γ at each lag")
    axes[0].plot(found.lags, found.channel, color=GREEN, label="worst single channel")
    axes[0].set(title="perturbed forgetting", xlabel="T", ylabel="accumulated variance", xscale="log")
    axes[1].plot(found.lags, found.written_bound, "--", color="#7f7f7f", label="T σ²")
    axes[1].plot(found.lags, found.written, color=BLUE, label="measured, γ = 0")
    axes[1].set(title="perturbed writing", xlabel="T")
    _finish(path, figure, axes)


def anchors(path: Path, found: Sequence[Anchors]) -> None:
    """What a window of w tokens misses."""
    figure, axes = _panels(1, 5.4)
    for n, a in enumerate(found):
        axes[0].plot(a.windows, a.bound, "--", color=COLOURS[n], linewidth=1)
        axes[0].plot(a.windows, a.worst, "x", color=COLOURS[n], markersize=6)
        axes[0].plot(a.windows, a.typical, "o-", color=COLOURS[n], markersize=3, label=f"γ = {a.gamma}")
    axes[0].plot([], [], "--", color="#7f7f7f", label="bound γ^(w+1) / (1−γ)")
    axes[0].plot([], [], "x", color="#7f7f7f", label="one key throughout")
    axes[0].plot([], [], "o-", color="#7f7f7f", markersize=3, label="random keys, mean")
    axes[0].axvline(5, color="#7f7f7f", linewidth=0.8, linestyle=":")
    axes[0].set(title="what the anchor's window misses of S k", xlabel="window w (the paper's: 5)", yscale="log")
    axes[0].set_ylim(1e-8, 50)
    _finish(path, figure, axes)


def degeneracy(path: Path, found: Degeneracy) -> None:
    """The delta rule on two sequences, with linear and with nonlinear values."""
    figure, axes = _panels(2)
    for n, name in enumerate(found.apart):
        axes[0].loglog(
            found.tokens, found.to_optimum[name], "o-", color=COLOURS[n], markersize=3, label=f"{name} values"
        )
        axes[1].loglog(found.tokens, found.apart[name], "o-", color=COLOURS[n], markersize=3, label=f"{name} values")
    axes[0].set(title="distance of S to W_v W_k⁻¹, relative", xlabel="tokens read")
    axes[1].set(title="distance of two sequences' states", xlabel="tokens read")
    _finish(path, figure, axes)


def spectrum(path: Path, values: Tensor, alpha: Tensor) -> None:
    """Eigenvalues of the forgetting operator of a trained layer."""
    figure, axes = _panels(1)
    bins = np.linspace(-0.1, 1.1, 61)
    axes[0].hist(values[..., 0].flatten().numpy(), bins, color=RED, alpha=0.7, label="smallest, α (1 − β)")
    axes[0].hist(alpha.flatten().numpy(), bins, color=BLUE, alpha=0.7, label="all others, α")
    for edge in (0, 1):
        axes[0].axvline(edge, color="#7f7f7f", linestyle="--")
    axes[0].set(title="spectrum of A_t, trained layer", xlabel="eigenvalue", ylabel="tokens × heads")
    _finish(path, figure, axes)


def slopes(path: Path, found: Slopes) -> None:
    """Lipschitz constants of the refinement, step by step and through the loop."""
    figure, axes = _panels(2)
    depth = np.arange(1, len(found.step) + 1)
    pairs = (("one step", found.step, found.step_bound), ("through the loop", found.loop, found.loop_bound))
    for axis, (title, measured, bound) in zip(axes, pairs, strict=True):
        axis.plot(depth, bound, "--", color="#7f7f7f", label="bound")
        axis.plot(depth, measured, "o-", color=RED, label="largest slope measured")
        axis.set(title=f"slope of δ in the residual: {title}", xlabel="step l", xticks=depth)
    axes[0].set_ylim(0)
    axes[1].set_yscale("log")
    _finish(path, figure, axes)


def amortisation(path: Path, found: Mapping[str, Mapping[int, Sequence[Amortisation]]]) -> None:
    """How much of the serial solver's improvement each write achieves, over L: medians, and one dot per seed."""
    figure, axes = _panels(len(found))
    for axis, (name, by_depth) in zip(axes, found.items(), strict=True):
        depths = list(by_depth)
        axis.plot(depths, [1.0] * len(depths), "--", color="#7f7f7f", label="serial solver, L steps")
        for label, colour, marker, share in (
            ("PRISM's L-step write", RED, "o", lambda one: one.prism),
            ("one-shot β v kᵀ", BLUE, "s", lambda one: one.one_shot),
            ("serial solver, 1 step", GREEN, "^", lambda one: one.serial[1]),
        ):
            middle = [median(share(one) for one in by_depth[d]) for d in depths]
            axis.plot(depths, middle, f"{marker}-", color=colour, label=label)
            for d in depths:
                for one in by_depth[d]:
                    axis.plot(d, share(one), marker, color=colour, alpha=0.35, markersize=3)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set(title=f"share of the solver's gain, {name}", xlabel="L", xticks=depths)
    low = min(axis.get_ylim()[0] for axis in axes)
    high = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(low, high)
    _finish(path, figure, axes)
