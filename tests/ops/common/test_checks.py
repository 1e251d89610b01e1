"""Values are looked at when debugging only: a look waits for the device."""

import pytest
import torch

from prism.ops import delta_rule
from prism.ops.common import checks


def test_a_decay_above_one_is_refused_when_debugging_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_look", False)
    q, gate = torch.randn(1, 3, 1, 4), torch.full((1, 3, 1), 0.5)
    delta_rule(q, q, q, gate, gate)
    checks.debug()
    with pytest.raises(ValueError, match=r"log_alpha must not be positive \(a decay is at most 1\), got 0.5"):
        delta_rule(q, q, q, gate, gate)
    with pytest.raises(ValueError, match="got nan"):
        delta_rule(q, q, q, gate, torch.full_like(gate, torch.nan))
