"""PRISM as a layer in a model of one's own: sequences of all lengths packed into one row, then served one by one.

The task: say which token came three tokens ago. Nothing is padded, no sequence sees another, and after training the
same weights read a stream in constant memory.

    python examples/packed_sequences.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prism.layers import mixer_config

TOKENS, DIM, AGO = 12, 32, 3


class Model(nn.Module):
    """Embedding, one PRISM layer with a residual connection, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, DIM)
        self.layer = mixer_config("prism", heads=2, steps=2).build(DIM)
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, TOKENS))

    def forward(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Logits of every token of a packed row."""
        x = self.embedding(tokens).unsqueeze(0)
        y, _ = self.layer(x, cu_seqlens=cu_seqlens)
        return self.head(x + y).squeeze(0)


def draw(rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of 32 sequences of 4 to 40, what each should answer (−1: nothing yet), and the sequences' limits."""
    lengths = torch.randint(4, 41, (32,), generator=rng)
    rows = [torch.randint(TOKENS, (int(n),), generator=rng) for n in lengths]
    answers = [F.pad(row, (AGO, 0), value=-1)[: len(row)] for row in rows]
    return torch.cat(rows), torch.cat(answers), F.pad(lengths.cumsum(0), (1, 0))


def main() -> None:
    torch.manual_seed(0)
    rng, model = torch.Generator().manual_seed(1), Model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for update in range(1, 201):
        tokens, answers, limits = draw(rng)
        loss = F.cross_entropy(model(tokens, limits), answers, ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if update % 50 == 0:
            print(f"update {update:>3}  loss {loss.item():.3f}")

    stream, right, state = torch.randint(TOKENS, (1000,), generator=rng), 0, None
    with torch.inference_mode():
        for t, token in enumerate(stream):
            x = model.embedding(token[None])
            y, state = model.layer.step(x, state)
            if t >= AGO:
                right += int(model.head(x + y).argmax() == stream[t - AGO])
    size = sum(part.numel() for part in state)
    print(f"a stream of {len(stream)} tokens: {right / (len(stream) - AGO):.1%} right, with {size} numbers of memory")


if __name__ == "__main__":
    main()
