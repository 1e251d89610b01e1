"""Pure functions on tensors, in the paper's symbols."""

from prism.ops.delta.rule import delta_rule, delta_rule_step
from prism.ops.gated.rule import gated_rule, gated_rule_step

__all__ = ["delta_rule", "delta_rule_step", "gated_rule", "gated_rule_step"]
