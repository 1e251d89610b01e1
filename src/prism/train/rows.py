"""AdamW that updates only the rows of a table that a step used: its cost does not grow with the table.

A gradient that is sparse over rows touches those rows' weights and averages alone. Each row has a clock of its own:
with c updates so far m̂ = m / (1 − β₁^c) and v̂ = v / (1 − β₂^c), which is Adam as that row has seen it. In a step that
uses all rows it is the dense AdamW.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.distributed.tensor import DTensor


def one_clock(row_steps: Tensor) -> Tensor:
    """The step of a table whose rows had clocks of their own: that of the row that has had most updates."""
    return row_steps.max().float()


class RowAdamW(torch.optim.AdamW):
    """Dense gradients as AdamW has them, sparse ones row by row."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update; sparse gradients must be coalesced."""
        aside: list[tuple[nn.Parameter, Tensor]] = []
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None and weight.grad.is_sparse:
                    self._step_rows(weight, group)
                    aside.append((weight, weight.grad))
                    weight.grad = None
                elif weight.grad is not None and "row_steps" in self.state[weight]:  # of a run that had sparse ones
                    on = weight.device if group["fused"] else "cpu"
                    self.state[weight]["step"] = one_clock(self.state[weight].pop("row_steps")).to(on)
        found = super().step(closure)
        # PyTorch's fused form does not count its writes, and what is made from weights once is kept by that count
        increment_version([weight for group in self.param_groups for weight in group["params"]])
        for weight, grad in aside:
            weight.grad = grad
        return found

    def step_if(self, finite: Tensor) -> None:
        """One update, or none where `finite` is false: on the device, where PyTorch's fused form can decide there."""
        grads = [weight.grad for group in self.param_groups for weight in group["params"]]
        plain = not any(isinstance(grad, DTensor) or (grad is not None and grad.is_sparse) for grad in grads)
        if not (plain and self.defaults["fused"]):
            if finite:
                self.step()
            return
        self.found_inf = (~finite).float()  # as a GradScaler says it
        try:
            self.step()
        finally:
            del self.found_inf

    def _step_rows(self, weight: nn.Parameter, group: dict[str, Any]) -> None:
        grad = weight.grad
        assert grad is not None
        rows, g = grad._indices()[0], grad._values()
        state = self.state[weight]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
            state["step"] = torch.zeros((), device=weight.device)
        if "step" in state:  # of this weight's first step, or of a run that had dense gradients
            state["row_steps"] = state.pop("step").to(weight.device, torch.int32).repeat(len(weight))
        beta1, beta2 = group["betas"]
        steps = state["row_steps"][rows] + 1
        m = state["exp_avg"][rows].lerp_(g, 1 - beta1)
        v = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        state["row_steps"][rows] = steps
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = m, v
        c = steps.double()[:, None]
        size = (group["lr"] / (1 - beta1**c)).to(m.dtype)
        root = v.div_((1 - beta2**c).to(v.dtype)).sqrt_().add_(group["eps"])
        now = weight[rows]
        if group["weight_decay"]:
            now *= 1 - group["lr"] * group["weight_decay"]  # as often as the row is used
        weight[rows] = now.sub_(m.mul_(size).div_(root))
