"""`prism paper theory`: what the paper proves or argues, as numbers and pictures with the bounds drawn in."""

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from prism.bench.report import Claim
from prism.config import positive
from prism.display.tables import show
from prism.files import refuse_file, write_whole
from prism.paper.theory import plots as theory_plots
from prism.paper.theory.linear import (
    Forgetting,
    anchor_errors,
    degeneracy,
    forget_ranks,
    forgetting,
    inverse_entries,
    write_ranks,
)
from prism.paper.theory.trained import (
    GELU_SLOPE,
    Amortisation,
    Slopes,
    Tokens,
    amortisation,
    forget_spectra,
    refinement_slopes,
    trained_layers,
)
from prism.probes.tasks.base import PROBES

GAMMAS = (0.5, 0.8, 0.95)
DEPTHS = (1, 2, 4)
# Our write beyond the paper: what the state holds already is taken away exactly, along every direction.
EXACT = "prism:forget=all,residual=state"
REWRITING = "erasing where it writes"


def theory(
    updates: int = 1500, task: str = "palindrome", length: int = 16, seeds: int = 3, out: Path = Path("theory")
) -> None:
    """Every theorem, lemma and argument of the paper that can be measured, with its bound.

    Args:
        updates: Training at most of the models that some measurements look into, until they solve the task; they are
            also looked at untrained.
        task: The probe that they are trained on.
        length: Its tokens.
        seeds: Models of each depth, with seeds 0, 1, …
        out: Folder of the results: theory.json and one PNG per measurement.
    """
    positive(updates=updates, seeds=seeds)
    refuse_file(out)
    PROBES[task](length=length)
    numbers, claims = recurrence(out)
    more, others = inside(updates, task, length, seeds, out)
    claims += others
    rows = [[claim.text, f"{claim.measured:.3g}", claim.limit, claim.verdict] for claim in claims]
    show("what the paper states", ["statement", "measured", "should be", "holds"], rows, left=(0, 2, 3))
    record = {"numbers": numbers | more, "claims": [asdict(c) | {"holds": c.holds} for c in claims]}
    write_whole(out / "theory.json", json.dumps(record, indent=1).encode())
    print(f"wrote {out}/theory.json and {len(list(out.glob('*.png')))} pictures")


def recurrence(out: Path) -> tuple[dict[str, Any], list[Claim]]:
    """What needs no trained model."""
    ranks, forget = write_ranks(), forget_ranks()
    theory_plots.ranks(out / "rank.png", ranks)
    errors = forgetting()
    theory_plots.errors(out / "forgetting.png", errors)
    anchors = [anchor_errors(gamma) for gamma in GAMMAS]
    theory_plots.anchors(out / "anchor.png", anchors)
    states = degeneracy()
    theory_plots.degeneracy(out / "degeneracy.png", states)
    inverses = {epsilon: inverse_entries(epsilon) for epsilon in (0.5, 1.0, 2.0)}
    numbers = {
        "rank": ranks,
        "forgetting rank": forget,
        "inverse": inverses,
        "forgetting": {name: np.asarray(value).tolist() for name, value in asdict(errors).items()},
        "anchor": [asdict(a) for a in anchors],
        "degeneracy": asdict(states),
    }
    misses = max(w / b for a in anchors for w, b in zip(a.worst, a.bound, strict=True))
    return numbers, [
        *_of_ranks(ranks, forget),
        *_of_inverses(inverses),
        *_of_errors(errors),
        Claim("anchor: worst error over γ^{w+1}/(1−γ)", misses, most=1 + 1e-9),
        Claim("distance to W_v W_k⁻¹, linear values (any sequence)", states.to_optimum["linear"][-1], most=1e-6),
        Claim("distance between two sequences' states, nonlinear values", states.apart["nonlinear"][-1], least=0.1),
    ]


def _of_ranks(ranks: dict[str, list[int]], forget: dict[str, list[int]]) -> list[Claim]:
    depths = np.arange(1, len(ranks["independent"]) + 1)
    missed = {name: float(np.abs(np.array(found) - depths).max()) for name, found in (ranks | forget).items()}
    return [
        Claim("rank of a token's write less L, largest", missed["independent"], most=0),
        Claim("rank with shared keys", max(ranks["shared"]), most=1),
        Claim("rank of a token's forgetting, as printed", max(forget["first"]), most=1),
        Claim("the same with forget=all, less L, largest", missed["all"], most=0),
    ]


def _of_inverses(inverses: dict[float, float]) -> list[Claim]:
    return [
        *(
            Claim(f"entries of a chunk's inverse over ε = {epsilon:g}", largest / epsilon, most=1 + 1e-9)
            for epsilon, largest in inverses.items()
        ),
        Claim("the same at ε = 1 with keys of length 1.5", inverse_entries(1.0, size=1.5)),
    ]


def _of_errors(errors: Forgetting) -> list[Claim]:
    envelope = float((errors.envelope / errors.envelope_bound).max())
    growth = float(errors.channel[-1] / errors.channel[len(errors.lags) // 8 - 1])
    written = float(errors.written[-1] / errors.written_bound[-1])
    return [
        Claim("forgetting, worst γ at each lag, over its ln T bound", envelope, most=1.1),
        Claim("the same at lag 1, over the paper's 4K/e²: its bound assumes γ = 2 there", errors.first_lag),
        Claim("forgetting, worst single channel, growth from T/8 to T", growth, most=1.3),
        Claim("writing, variance over T σ²", written, least=0.8, most=1.2),
    ]


Shares = dict[str, dict[int, list[Amortisation]]]


def inside(updates: int, task: str, length: int, seeds: int, out: Path) -> tuple[dict[str, Any], list[Claim]]:
    """What is measured in models, before training and after, the last layer of each."""
    found: dict[str, Any] = {}
    shares: Shares = {name: {depth: [] for depth in DEPTHS} for name in ("untrained", "trained", REWRITING)}
    accuracies: list[float] = []
    slopes: list[Slopes] = []
    deepest: list[Tokens] = []
    for depth, seed in product(DEPTHS, range(seeds)):
        given: dict[str, Any] = {"task": task, "length": length, "seed": seed}
        for name, many in (("untrained", 0), ("trained", updates)):
            layers, accuracy = trained_layers(depth, updates=many, **given)
            shares[name][depth].append(amortisation(layers[-1]))
            record = asdict(shares[name][depth][-1]) | {"accuracy": accuracy}
            found[f"amortisation, L={depth}, seed {seed}, {name}"] = record
        exact, _ = trained_layers(depth, mixer=EXACT, updates=updates, **given)
        shares[REWRITING][depth].append(amortisation(exact[-1]))
        accuracies.append(accuracy)
        slopes.append(refinement_slopes(layers[-1]))
        found[f"slopes, L={depth}, seed {seed}"] = asdict(slopes[-1])
        if depth == DEPTHS[-1]:
            deepest.append(layers[-1])
    show_shares(shares)
    values, alphas = zip(*(forget_spectra(tokens) for tokens in deepest), strict=True)
    spectrum, alpha = torch.cat(values), torch.cat(alphas)
    theory_plots.spectrum(out / "spectrum.png", spectrum, alpha)
    theory_plots.slopes(out / "lipschitz.png", max(slopes, key=lambda one: max(one.loop)))
    theory_plots.amortisation(out / "amortisation.png", shares)
    found["spectrum"] = {"least": float(spectrum.min()), "most": float(spectrum.max())}
    return found, [
        # what follows is said of trained models: of models that have not learnt their task it would say nothing
        Claim("accuracy of the trained models, smallest", min(accuracies), least=0.95),
        Claim("spectrum of A_t, smallest", float(spectrum.min()), least=-1e-9),
        Claim("spectrum of A_t, largest over α", float((spectrum / alpha[..., None]).max()), most=1 + 1e-9),
        *_of_slopes(slopes),
        *_of_shares(shares),
    ]


def _of_slopes(slopes: list[Slopes]) -> list[Claim]:
    step = max(a / b for one in slopes for a, b in zip(one.step, one.step_bound, strict=True))
    gain = max(bound for one in slopes for bound in one.step_bound) / GELU_SLOPE
    damped = min(share for one in slopes for share in one.damped)
    return [
        Claim("slope of a refinement step over L_φ·M", step, most=1),
        Claim("M = max|p|, which the paper takes as about 1", gain, most=1.5),
        Claim("share of channels in which r − δ is negative feedback, smallest of any step", damped),
    ]


def _of_shares(shares: Shares) -> list[Claim]:
    L, last = DEPTHS[-1], shares["trained"][DEPTHS[-1]]
    prism, rewriting = (median(one.prism for one in shares[name][L]) for name in ("trained", REWRITING))
    cosine, correlation = median(one.anchor_cosine for one in last), median(one.gain_correlation for one in last)
    return [
        Claim(f"share of the serial solver's gain, L={L}: PRISM's write (1: as good)", prism, least=0.5),
        Claim(f"the same, L={L}: {EXACT}", rewriting),
        Claim(f"the same, L={L}: Gated DeltaNet's one-shot write", median(one.one_shot for one in last)),
        Claim("cosine of the anchor with φ(S⁰k), which it stands for", cosine, least=0.5),
        Claim("correlation of the gain with φ'(S⁰k)", correlation, least=0.5),
    ]


def show_shares(shares: Shares) -> None:
    """The amortisation over L: the median of the seeds, and their range."""
    kinds: dict[str, tuple[str, Callable[[Amortisation], float]]] = {
        "PRISM's, untrained": ("untrained", lambda one: one.prism),
        "PRISM's, trained": ("trained", lambda one: one.prism),
        f"{EXACT}, trained": (REWRITING, lambda one: one.prism),
        "one-shot β v kᵀ": ("trained", lambda one: one.one_shot),
        "nonlinear_delta, 1 step": ("trained", lambda one: one.serial[1]),
        "nonlinear_delta, 8 steps": ("trained", lambda one: one.serial[8]),
        "cosine of u with φ(S⁰k)": ("trained", lambda one: one.anchor_cosine),
        "correlation of p with φ'(S⁰k)": ("trained", lambda one: one.gain_correlation),
    }
    rows = []
    for text, (name, value) in kinds.items():
        columns = [[value(one) for one in shares[name][depth]] for depth in DEPTHS]
        rows.append([text, *(f"{median(c):.2f} ({min(c):.2f} to {max(c):.2f})" for c in columns)])
    title = "share of the serial solver's gain: median (least to most of the seeds)"
    show(title, ["write", *(f"L = {depth}" for depth in DEPTHS)], rows)
