"""The theory as measurements: every bound that is drawn holds for what was measured, exact where it can be."""

import json
from math import e, log
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from prism.layers.prism import Prism, PrismConfig
from prism.ops import delta_rule
from prism.ops.fastweight.nonlinear_delta import nonlinear_delta
from prism.paper.theory import command
from prism.paper.theory.linear import anchor_errors, degeneracy, forget_ranks, forgetting, inverse_entries, write_ranks
from prism.paper.theory.trained import (
    GELU_SLOPE,
    Tokens,
    amortisation,
    forget_spectra,
    look_inside,
    refinement_slopes,
    trained_layers,
)


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    layers, _ = trained_layers(3, task="parity", updates=20, length=10)
    return layers[-1]


def test_a_token_writes_rank_L_with_its_own_keys_and_rank_1_with_one() -> None:
    assert write_ranks(most=5) == {"independent": [1, 2, 3, 4, 5], "shared": [1] * 5}


def test_a_token_forgets_along_one_direction_as_printed_and_along_L_where_it_erases_all() -> None:
    assert forget_ranks(most=5) == {"first": [1] * 5, "all": [1, 2, 3, 4, 5]}


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.9, 2.0])
def test_the_inverse_of_a_chunk_has_entries_of_at_most_epsilon_with_unit_keys(epsilon: float) -> None:
    found = max(inverse_entries(epsilon, width=width, seed=seed) for width in (1, 2, 8) for seed in range(5))
    assert 0.3 * epsilon < found <= epsilon + 1e-9


def test_with_longer_keys_the_inverse_has_no_bound() -> None:
    assert inverse_entries(1.0, size=1.5, width=2) > 1e3


def test_the_papers_remark_as_printed_is_of_another_matrix() -> None:
    """(I − β k kᵀ)⁻¹ = I + β/(1 − β) k kᵀ has entries of any size; the bounded one is the chunk's triangular one."""
    k = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert torch.linalg.inv(torch.eye(2) - 0.9 * torch.outer(k, k)).max() == pytest.approx(10)


@pytest.fixture(scope="module")
def errors():
    return forgetting(T=128, trials=3000)


def test_mistaken_forgetting_stays_under_its_logarithm_and_mistaken_writing_grows_like_T(errors) -> None:
    assert (errors.envelope <= 1.1 * errors.envelope_bound).all()
    assert errors.envelope[-1] > errors.envelope[15]  # it does grow: slowly
    assert errors.envelope[-1] / errors.envelope[0] < 1 + log(128)
    np.testing.assert_allclose(errors.written, errors.written_bound, rtol=0.15)


def test_no_single_channel_forgets_worse_with_time(errors) -> None:
    """The ln T of the theorem takes another γ for every lag; any one channel's error is constant."""
    assert errors.channel[-1] < 1.05 * errors.channel[15]


def test_the_theorems_envelope_fails_at_the_first_lag_alone() -> None:
    K, gamma = 0.01, np.linspace(1e-3, 1, 2000)[:, None]
    lag = np.arange(1, 200)[None]
    exact = ((1 - gamma) ** 2 + K * gamma**2) ** lag - (1 - gamma) ** (2 * lag)
    over = exact.max(0) / (4 * K / e**2 / lag[0])
    assert over[0] == pytest.approx(e**2 / 4, rel=1e-6)
    assert (over[1:] < 1).all()


def test_the_simulated_variance_is_the_exact_one() -> None:
    K, T = 0.01, 32
    gamma = np.geomspace(1 / T, 1, 40)[:, None]
    lag = np.arange(1, T + 1)[None]
    exact = ((1 - gamma) ** 2 + K * gamma**2) ** lag - (1 - gamma) ** (2 * lag)
    found = forgetting(T=T, K=K, trials=20_000)
    np.testing.assert_allclose(found.envelope, exact.max(0).cumsum(), rtol=0.06)


@pytest.mark.parametrize("gamma", [0.5, 0.8, 0.95])
def test_the_anchors_window_misses_at_most_its_bound_and_one_key_meets_it(gamma: float) -> None:
    found = anchor_errors(gamma)
    assert (np.array(found.typical) < found.bound).all()
    np.testing.assert_allclose(found.worst, found.bound, rtol=1e-7)


def test_linear_values_lead_every_sequence_to_one_state_and_nonlinear_ones_do_not() -> None:
    found = degeneracy(length=600)
    assert found.to_optimum["linear"][-1] < 1e-10
    assert found.apart["linear"][-1] < 1e-10
    assert found.apart["nonlinear"][-1] > 0.1


def test_the_spectrum_of_forgetting_lies_between_0_and_alpha(tokens: Tokens) -> None:
    values, alpha = forget_spectra(tokens)
    assert values.min() >= -1e-12
    assert (values <= alpha[..., None] + 1e-12).all()
    beta = tokens.write.beta[..., 0]
    torch.testing.assert_close(values[..., 0], alpha * (1 - beta))


def test_refinement_is_no_steeper_than_its_bound(tokens: Tokens) -> None:
    found = refinement_slopes(tokens)
    assert len(found.step) == 3
    for measured, bound in ((found.step, found.step_bound), (found.loop, found.loop_bound)):
        assert all(0 < a <= b for a, b in zip(measured, bound, strict=True))


def test_gelus_steepest_slope_is_what_we_say() -> None:
    x = torch.linspace(-5, 5, 100_001, dtype=torch.float64)
    slope = torch.ops.aten.gelu_backward(torch.ones_like(x), x)
    assert 0.9999 * GELU_SLOPE < slope.max() <= GELU_SLOPE


def test_looking_inside_sees_what_the_layer_does() -> None:
    torch.manual_seed(0)
    layer = PrismConfig(heads=2, steps=2).build(8).double()
    assert isinstance(layer, Prism)
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    seen = look_inside(layer, x)
    write, _ = layer.write(layer.norm(layer.conv(x, None, None)[0]))
    _, S = delta_rule(*(y[:, :-1] for y in write[:5]), output_final_state=True)
    torch.testing.assert_close(seen.before.unflatten(0, (2, 7))[:, -1], S)
    again = F.gelu(seen.gain[:, :, 0] * (seen.v - seen.anchor))
    torch.testing.assert_close(again, seen.write.v[:, :, 0])


def test_the_solver_itself_achieves_all_of_its_gain_and_more_steps_more(tokens: Tokens) -> None:
    found = amortisation(tokens, depths=(1, 2, 3, 6))
    assert found.serial[3] == pytest.approx(1)
    assert found.serial[1] < found.serial[2] < found.serial[3] < found.serial[6]
    assert found.prism < 1  # what this measure is for: the amortised write does not reach the solver


def test_the_share_is_1_for_a_write_that_is_the_solvers_and_0_for_none(tokens: Tokens) -> None:
    w, k = tokens.write, tokens.write.k[:, :, 0]
    depth = tokens.layer.config.steps
    one = [y[:, None] for y in (w.q, k, tokens.v, w.beta[..., 0], w.log_alpha)]
    _, S = nonlinear_delta(*one, steps=depth, initial_state=tokens.before, output_final_state=True)
    start = w.log_alpha.exp()[..., None, None] * tokens.before
    along = S - start  # Δ kᵀ, put where PRISM's write goes: S⁰ (I − β k kᵀ) + Σ β δ kᵀ
    beta, read = w.beta[..., 0], torch.einsum("nhvk,nhk->nhv", start, k)
    delta = torch.einsum("nhvk,nhk->nhv", along, k) / beta[..., None] + read
    others = torch.zeros_like(w.v[:, :, 1:])
    ideal = tokens._replace(write=w._replace(v=torch.cat([delta[:, :, None], others], 2)))
    assert amortisation(ideal).prism == pytest.approx(1)
    nothing = tokens._replace(write=w._replace(v=torch.cat([read[:, :, None], others], 2)))
    assert amortisation(nothing).prism == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_erasing_where_it_writes_gains_all_that_the_serial_solver_does(steps: int) -> None:
    """By construction, for identity φ, no gain and one direction; and the printed write of the same layer does not."""
    fields = {"heads": 2, "steps": steps, "keys": "base", "gain": "none", "nonlinearity": "identity"}
    shares = {}
    for name, own in (("exact", {"forget": "all", "residual": "state"}), ("printed", {})):
        torch.manual_seed(0)
        layer = PrismConfig(**fields, **own).build(8)
        shares[name] = amortisation(look_inside(layer, torch.randn(2, 20, 8))).prism
    assert shares["exact"] == pytest.approx(1)
    assert abs(shares["printed"] - 1) > 0.1


def test_the_command_writes_numbers_claims_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "DEPTHS", (1, 2))
    monkeypatch.setattr(command, "forgetting", lambda: forgetting(T=64, trials=500))
    command.theory(updates=2, task="parity", length=8, seeds=2, out=tmp_path)
    record = json.loads((tmp_path / "theory.json").read_text())
    assert len(record["claims"]) >= 15
    assert {f"amortisation, L={L}, seed {seed}, trained" for L in (1, 2) for seed in (0, 1)} <= set(record["numbers"])
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "rank.png", "forgetting.png", "anchor.png", "degeneracy.png", "spectrum.png", "lipschitz.png",
        "amortisation.png",
    }  # fmt: skip
    assert all((tmp_path / name.name).read_bytes().startswith(b"\x89PNG") for name in tmp_path.glob("*.png"))
