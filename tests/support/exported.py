"""Run as a program, where no shape checker stops the tracer: `encode`, exported, against itself; prints the error."""

import torch
from support.recurrence import error_ratio

from prism.models.backbone import BackboneConfig
from prism.ops.common.packing import Packing
from prism.recommend.model.recommender import Events, RecommenderConfig


class Encode(torch.nn.Module):
    """The features of packed histories whose limits are known when it is exported."""

    def __init__(self, limits: tuple[int, ...]):
        super().__init__()
        self.model = RecommenderConfig(backbone=BackboneConfig(dim=16, layers=2)).build(9).eval()
        self.limits = Packing(limits)

    def forward(self, items: torch.Tensor, since: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """[T, D]."""
        return self.model.encode(Events(items, since, times), self.limits)[0]  # type: ignore[arg-type]


def main() -> None:
    """Prints the error ratio, and whether the recurrence is one operation of the graph."""
    torch.manual_seed(0)
    module = Encode((0, 5, 12))
    given = torch.randint(9, (12,)), torch.zeros(12, dtype=torch.long), torch.zeros(12, 2, dtype=torch.long)
    with torch.no_grad():
        exported = torch.export.export(module, given)
        error = error_ratio(exported.module()(*given), module(*given))
    targets = {str(node.target) for node in exported.graph.nodes}
    print(error, "prism.delta_rule.default" in targets)


if __name__ == "__main__":
    main()
