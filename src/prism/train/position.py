"""Where a run stands: all that has to be known, beside the tensors, to go on from there."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Position:
    """After `step` updates: in `epoch`, with `batch` of its batches done."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    """Of the steps since the last line of the log."""
    loss_count: int = 0
    best: float | None = None
    best_epoch: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    stale: int = 0
    """Evaluations since the best."""
    finished: bool = False

    def stepped(self, batches: int, loss: float, count: int) -> "Position":
        """After one update on so many batches."""
        return replace(
            self,
            batch=self.batch + batches,
            step=self.step + 1,
            tokens=self.tokens + count,
            loss_sum=self.loss_sum + loss,
            loss_count=self.loss_count + count,
        )

    def logged(self) -> "Position":
        """After a line in the log: the mean loss starts afresh."""
        return replace(self, loss_sum=0.0, loss_count=0)

    def evaluated(self, value: float, metrics: dict[str, float], higher: bool) -> "Position":
        """After an evaluation, better or not."""
        if self.best is None or (value > self.best if higher else value < self.best):
            return replace(self, best=value, best_epoch=self.epoch, best_metrics=metrics, stale=0)
        return replace(self, stale=self.stale + 1)

    @property
    def mean_loss(self) -> float:
        """Since the last line of the log."""
        return self.loss_sum / self.loss_count if self.loss_count else float("nan")
