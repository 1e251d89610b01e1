"""`prism paper theory`: what the paper proves or argues, as numbers and pictures with the bounds drawn in."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from prism.bench.report import Claim, console
from prism.config import at_least
from prism.files import write_whole
from prism.recipes import theory_plots
from prism.recipes.theory_linear import anchor_errors, degeneracy, forgetting, write_ranks
from prism.recipes.theory_trained import amortisation, forget_spectra, refinement_slopes, trained_layers

GAMMAS = (0.5, 0.8, 0.95)
DEPTHS = (1, 2, 4)


def theory(updates: int = 1500, task: str = "palindrome", length: int = 16, out: Path = Path("theory")) -> None:
    """Every theorem, lemma and argument of the paper that can be measured, with its bound.

    Args:
        updates: Training at most of the models that some measurements look into, until they solve the task; they are
            also looked at untrained.
        task: The probe that they are trained on.
        length: Its tokens.
        out: Folder of the results: theory.json and one PNG a measurement.
    """
    at_least("updates", updates, 1)
    numbers, claims = recurrence(out)
    more, others = inside(updates, task, length, out)
    claims += others
    table = Table()
    for name in ("statement", "measured", "should be", "holds"):
        table.add_column(name, justify="right" if name == "measured" else "left")
    for claim in claims:
        table.add_row(claim.text, f"{claim.measured:.3g}", claim.limit, _holds(claim))
    console().print(table)
    record = {"numbers": numbers | more, "claims": [asdict(c) | {"holds": c.holds} for c in claims]}
    write_whole(out / "theory.json", json.dumps(record, indent=1).encode())
    print(f"wrote {out}/theory.json and {len(list(out.glob('*.png')))} pictures")


def _holds(claim: Claim) -> str:
    return "" if not claim.limit else "yes" if claim.holds else "NO"


def recurrence(out: Path) -> tuple[dict[str, Any], list[Claim]]:
    """What needs no trained model."""
    ranks = write_ranks()
    theory_plots.ranks(out / "rank.png", ranks)
    errors = forgetting()
    theory_plots.errors(out / "forgetting.png", errors)
    anchors = [anchor_errors(gamma) for gamma in GAMMAS]
    theory_plots.anchors(out / "anchor.png", anchors)
    states = degeneracy()
    theory_plots.degeneracy(out / "degeneracy.png", states)
    misses = max(w / b for a in anchors for w, b in zip(a.worst, a.bound, strict=True))
    depths = np.arange(1, len(ranks["independent"]) + 1)
    claims = [
        Claim(
            text="rank of a token's write less L, largest",
            measured=float(np.abs(ranks["independent"] - depths).max()),
            most=0,
        ),
        Claim(text="rank with shared keys", measured=float(max(ranks["shared"])), most=1),
        Claim(
            text="forgetting, worst γ at each lag, over its ln T bound",
            measured=float((errors.envelope / errors.envelope_bound).max()),
            most=1.1,
        ),
        Claim(
            text="the same at lag 1, over the paper's 4K/e²: its bound assumes γ = 2 there", measured=errors.first_lag
        ),
        Claim(
            text="forgetting, worst single channel, growth from T/8 to T",
            measured=float(errors.channel[-1] / errors.channel[len(errors.lags) // 8 - 1]),
            most=1.3,
        ),
        Claim(
            text="writing, variance over T σ²",
            measured=float(errors.written[-1] / errors.written_bound[-1]),
            least=0.8,
            most=1.2,
        ),
        Claim(text="anchor: worst error over γ^{w+1}/(1−γ)", measured=misses, most=1 + 1e-9),
        Claim(
            text="distance to W_v W_k⁻¹, linear values (any sequence)",
            measured=states.to_optimum["linear"][-1],
            most=1e-6,
        ),
        Claim(
            text="distance between two sequences' states, nonlinear values",
            measured=states.apart["nonlinear"][-1],
            least=0.1,
        ),
    ]
    numbers = {
        "rank": ranks,
        "forgetting": {name: np.asarray(value).tolist() for name, value in asdict(errors).items()},
        "anchor": [asdict(a) for a in anchors],
        "degeneracy": asdict(states),
    }
    return numbers, claims


def inside(updates: int, task: str, length: int, out: Path) -> tuple[dict[str, Any], list[Claim]]:
    """What is measured in models, before training and after, the last layer of each."""
    found: dict[str, Any] = {}
    shares: dict[str, dict[int, Any]] = {"untrained": {}, "trained": {}}
    accuracies: list[float] = []
    spectrum, alpha, slopes = torch.empty(0), torch.empty(0), None
    for steps in DEPTHS:
        for name, many in (("untrained", 0), ("trained", updates)):
            layers, accuracy = trained_layers(steps, task=task, updates=many, length=length)
            shares[name][steps] = amortisation(layers[-1])
            found[f"amortisation, L={steps}, {name}"] = asdict(shares[name][steps]) | {"accuracy": accuracy}
        accuracies.append(accuracy)
        spectrum, alpha = forget_spectra(layers[-1])
        slopes = refinement_slopes(layers[-1])
        found[f"slopes, L={steps}"] = asdict(slopes)
    assert slopes is not None
    theory_plots.spectrum(out / "spectrum.png", spectrum, alpha)
    theory_plots.slopes(out / "lipschitz.png", slopes)
    theory_plots.amortisation(out / "amortisation.png", shares)
    depth = DEPTHS[-1]
    last = shares["trained"][depth]
    claims = [
        # what follows is said of trained models: of models that have not learnt their task it would say nothing
        Claim(text="accuracy of the trained models, smallest", measured=min(accuracies), least=0.95),
        Claim(text="spectrum of A_t, smallest", measured=float(spectrum.min()), least=-1e-9),
        Claim(
            text="spectrum of A_t, largest over α", measured=float((spectrum / alpha[..., None]).max()), most=1 + 1e-9
        ),
        Claim(
            text="slope of a refinement step over L_φ·M",
            measured=max(a / b for a, b in zip(slopes.step, slopes.step_bound, strict=True)),
            most=1,
        ),
        Claim(text="M = max|p|, which the paper takes as about 1", measured=slopes.step_bound[0] / 1.129, most=1.5),
        Claim(
            text=f"share of the serial solver's gain, L={depth}: PRISM's write (1: as good)",
            measured=last.prism,
            least=0.5,
        ),
        Claim(text=f"the same, L={depth}: Gated DeltaNet's one-shot write", measured=last.one_shot),
        Claim(text="cosine of the anchor with φ(S⁰k), which it stands for", measured=last.anchor_cosine, least=0.5),
        Claim(text="correlation of the gain with φ'(S⁰k)", measured=last.gain_correlation, least=0.5),
    ]
    found["spectrum"] = {"least": float(spectrum.min()), "most": float(spectrum.max())}
    return found, claims
