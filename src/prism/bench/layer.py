"""`prism bench layer`: whole mixers, projections and all, beside each other."""

from functools import partial
from pathlib import Path

import torch

from prism.bench.measure import Job, Measurement, measured, threads
from prism.bench.report import Claim, check_out, leave, show_measurements
from prism.config import positive, some
from prism.errors import InputError
from prism.layers.spelling import spelled_mixer


def jobs(mixers: tuple[str, ...], dim: int, heads: int, batch: int, length: int, backward: bool) -> dict[str, Job]:
    torch.manual_seed(0)
    x = torch.randn(batch, length, dim, requires_grad=True)
    return {
        name: partial(_once, spelled_mixer(name, heads=heads).build(dim), x, backward)
        for name in mixers
    }  # fmt: skip


def _once(mixer: torch.nn.Module, x: torch.Tensor, backward: bool) -> None:
    if backward:
        y, _ = mixer(x)
        torch.autograd.grad(y.sum(), [x, *mixer.parameters()])
        return
    with torch.no_grad():
        mixer(x)


def check(mixers: tuple[str, ...], dim: int, heads: int) -> None:
    """Refuses to time what is wrong: the layer at once in float32 against its own steps in float64."""
    for name in mixers:
        torch.manual_seed(0)
        mixer, x = spelled_mixer(name, heads=heads).build(dim), torch.randn(1, 70, dim)
        with torch.no_grad():
            fast, _ = mixer(x)
            exact, state, steps = mixer.double(), None, []
            for t in range(x.shape[1]):
                y, state = exact.step(x[:, t].double(), state)
                steps.append(y)
        slow = torch.stack(steps, 1)
        error = float((fast - slow).norm() / slow.norm())
        if not error < 1e-3:
            raise InputError(
                f"{name} at once is off by {error:.1e} from its own steps, so nothing was timed: run its tests"
            )


def layer(
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096),
    mixers: tuple[str, ...] = ("prism", "gated-deltanet", "linear-attention"),
    dim: int = 768,
    heads: int = 8,
    batch: int = 1,
    num_threads: int = 1,
    repeats: int = 5,
    memory: bool = True,
    out: Path = Path("bench-layer"),
) -> None:
    """Speed and memory of whole mixers of one width.

    Args:
        lengths: Sequence lengths T.
        mixers: Names from `prism list`, with fields after a colon: prism:steps=4.
        dim: Model width D.
        heads: Heads of every mixer.
        batch: Sequences at once.
        num_threads: Torch threads.
        repeats: Runs of each, taken in turns; the median counts.
        memory: Also measure peak memory, in a process of its own.
        out: Where results go: OUT.json and OUT.png.
    """
    some(mixers=mixers)
    positive(lengths=lengths, batch=batch, num_threads=num_threads, repeats=repeats)
    check_out(out)
    for name in mixers:
        spelled_mixer(name, heads=heads).build(dim)  # refuses what does not fit
    works = ("forward", "forward+backward")
    cases = [(mixers, dim, heads, batch, T, work == works[1]) for T in lengths for work in works]
    with threads(num_threads):
        check(mixers, dim, heads)
    found = measured(jobs, cases, repeats, num_threads=num_threads, memory=memory)
    panels: dict[str, list[Measurement]] = {work: [] for work in works}
    for case, fields in zip(cases, found, strict=True):
        T, work = case[4], works[case[5]]
        size = {"B": batch, "T": T, "D": dim, "H": heads}
        panels[work] += [
            Measurement(system=name, work=work, tokens=batch * T, size=size, **of_job)
            for name, of_job in fields.items()
        ]
    for work, rows in panels.items():
        show_measurements(rows, f"{work}, tokens per second: B={batch} D={dim} H={heads}, {num_threads} thread(s)")
    claims = _claims(panels["forward+backward"], max(lengths))
    record = {"benchmark": "layer", "threads": num_threads}
    leave(out, record, panels, claims, f"Whole mixers, D={dim}, H={heads}, {num_threads} thread(s)")


def _claims(rows: list[Measurement], T: int) -> list[Claim]:
    at = {row.system: row.seconds for row in rows if row.size["T"] == T}
    if not {"prism", "gated-deltanet"} <= at.keys():
        return []
    ratio = at["prism"] / at["gated-deltanet"]
    return [Claim(text=f"prism (L=2) / gated-deltanet, forward+backward, T={T:,}", measured=ratio, most=1.35)]
