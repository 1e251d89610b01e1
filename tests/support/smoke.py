"""What `pip install prism-sequence`, without extras, must do: run in an empty environment by `make package`."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from prism.layers import MIXERS, mixer_config
from prism.models.backbone import BackboneConfig
from prism.ops import delta_rule


def operator() -> None:
    """The compiled form on this machine against the definition, with gradients to every operand."""
    torch.manual_seed(0)
    unit = torch.nn.functional.normalize
    q, k = unit(torch.randn(1, 50, 2, 16), dim=-1), unit(torch.randn(1, 50, 2, 2, 16), dim=-1)
    v, beta, log_alpha = torch.randn(1, 50, 2, 2, 16), torch.rand(1, 50, 2, 2), -torch.rand(1, 50, 2)
    operands = [x.requires_grad_() for x in (q, k, v, beta, log_alpha)]
    found = torch.autograd.grad(delta_rule(*operands)[0].square().sum(), operands)
    exact = torch.autograd.grad(delta_rule(*operands, backend="reference")[0].square().sum(), operands)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).norm() < 1e-4 * b.norm()


def layers() -> None:
    """Every mixer alone and in a backbone: forward, backward, one token more."""
    x = torch.randn(2, 20, 32)
    for name in MIXERS:
        model = BackboneConfig(dim=32, layers=1, mixer=mixer_config(name, heads=2)).build()
        y, state = model(x)
        y.square().mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), name
        token, _ = model.step(x[:, 0], state)
        assert token.isfinite().all(), name


def program() -> None:
    """`prism --version` answers; a command whose extra is absent says so in one line."""
    prism = Path(sys.executable).with_name("prism")
    assert subprocess.run([prism, "--version"], capture_output=True, text=True, check=True).stdout.startswith("prism ")
    if find_spec("tyro") is None:
        done = subprocess.run([prism, "fit", "--help"], capture_output=True, text=True)
        assert done.returncode == 2, done
        assert done.stderr.startswith("prism: "), done.stderr
        assert done.stderr.endswith("pip install 'prism-sequence[cli]'\n"), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


if __name__ == "__main__":
    for part in (operator, layers, program):
        part()
        print(f"{part.__name__}: works")
