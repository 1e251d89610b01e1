"""`prism bench op`: the recurrence beside what a user would have instead on the same machine."""

from math import inf
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from prism.bench.erasures import erasure_claims
from prism.bench.measure import Measurement, copy_rate, in_turns, measured, threads
from prism.bench.operators import Size, System, available, check, jobs, label
from prism.bench.report import Claim, check_out, leave, show_measurements
from prism.config import positive
from prism.machine import matmul_rate
from prism.ops.delta.rule import delta_rule_flops


def op(
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384),
    steps: tuple[int, ...] = (1, 2, 4),
    systems: tuple[System, ...] = ("cpu", "chunk", "reference", "attention", "transformers"),
    batch: int = 1,
    heads: int = 8,
    size: int = 96,
    num_threads: int = 1,
    repeats: int = 5,
    memory: bool = True,
    device: Literal["cpu", "cuda"] = "cpu",
    out: Path = Path("bench-op"),
) -> None:
    """Speed and memory of the recurrence beside PyTorch's attention and transformers' fallback.

    Args:
        lengths: Sequence lengths T.
        steps: Ranks L of the write.
        systems: What to time.
        batch: Sequences at once.
        heads: Heads.
        size: Width of a head's keys and values.
        num_threads: Torch threads.
        repeats: Runs of each, taken in turns; the median counts.
        memory: Also measure peak memory, in a process of its own.
        device: `cuda` times the GPU's kernels in bfloat16 instead, beside fla (if installed) and attention; `systems`,
            `num_threads` and `memory` are the CPU's.
        out: Where results go: OUT.json and OUT.png.
    """
    positive(
        lengths=lengths, steps=steps, batch=batch, heads=heads, size=size, repeats=repeats, num_threads=num_threads
    )
    check_out(out)
    if device == "cuda":
        from prism.bench.gpu import report

        report(lengths, steps, batch, heads, size, repeats, out)
        return
    chosen = available(systems)
    cases = [
        (chosen, [Size(B=batch, T=T, H=heads, L=L, D=size) for L in steps], work == "forward+backward")
        for T in lengths
        for work in ("forward", "forward+backward")
    ]
    with threads(num_threads):
        for L in steps:
            check(chosen, L)
    found = measured(jobs, cases, repeats, num_threads=num_threads, memory=memory)
    panels: dict[str, list[Measurement]] = {"forward": [], "forward+backward": []}
    for (_, sizes, backward), fields in zip(cases, found, strict=True):
        work = "forward+backward" if backward else "forward"
        panels[work] += _rows(work, sizes, fields)
    for work, rows in panels.items():
        show_measurements(rows, f"{work}, tokens per second: B={batch} H={heads} K=V={size}, {num_threads} thread(s)")
    claims = _claims(panels["forward+backward"])
    compared = Size(B=batch, T=min(max(lengths), 4096), H=heads, L=2, D=size)
    if "cpu" in chosen and num_threads == 1 and torch.get_num_threads() > 1:
        claims.append(_two_threads(compared, repeats))
    if "cpu" in chosen and max(steps) > 1:
        with threads(num_threads):
            claims += erasure_claims(tuple(compared.operands()), repeats)  # type: ignore[arg-type]
    with threads(num_threads):
        limits = _limits(panels, heads, size)
    record = {"benchmark": "op", "threads": num_threads, "limits": limits}
    leave(out, record, panels, claims, f"The recurrence, H={heads}, K=V={size}, {num_threads} thread(s)")


def _rows(work: str, sizes: list[Size], fields: dict[str, dict[str, Any]]) -> list[Measurement]:
    size_of = {label(system, size.L): size for size in reversed(sizes) for system in get_args(System)}
    return [
        Measurement(
            system=name,
            work=work,
            tokens=size_of[name].B * size_of[name].T,
            size=dict(vars(size_of[name])),
            **of_job,
        )
        for name, of_job in fields.items()
    ]


def _claims(rows: list[Measurement]) -> list[Claim]:
    """The ratios that the project holds itself to, as far as this run has what they need."""
    at = {(row.system, row.size["T"]): row for row in rows}
    claims: list[Claim] = []

    def add(text: str, slow: tuple[str, int], fast: tuple[str, int], **limit: float) -> None:
        if slow in at and fast in at:
            claims.append(Claim(text=text, measured=at[slow].seconds / at[fast].seconds, **limit))

    T, rest = 4096, "transformers fallback, L=1"
    sdpa = "PyTorch causal attention"
    add("transformers fallback / chunk, L=1, T=4,096", (rest, T), ("prism chunk, L=1", T), least=3)
    add("chunk L=2 / L=1, T=4,096", ("prism chunk, L=2", T), ("prism chunk, L=1", T), most=1.6)
    add("transformers fallback / cpu, L=1, T=4,096", (rest, T), ("prism cpu, L=1", T), least=6)
    add("chunk / cpu, L=2, T=4,096", ("prism chunk, L=2", T), ("prism cpu, L=2", T), least=2)
    add("attention / cpu L=2, T=4,096", (sdpa, T), ("prism cpu, L=2", T), least=2.5)
    add("attention / cpu L=2, T=1,024", (sdpa, 1024), ("prism cpu, L=2", 1024), least=1)
    if rows and rows[0].size["D"] <= 32:  # a recommender's shape
        for short in sorted({row.size["T"] for row in rows}):
            slow, fast = ("prism chunk, L=2", short), ("prism cpu, L=2", short)
            add(f"chunk / cpu, L=2, T={short:,}, narrow heads", slow, fast, least=3)
    for backend in ("chunk", "cpu"):
        name = f"prism {backend}, L=2"
        add(f"{backend} L=2, time at T=16,384 / T=4,096", (name, 16384), (name, T), most=4.6)
        peaks = [row.peak_bytes for row in (at.get((name, 16384)), at.get((name, T))) if row and row.peak_bytes]
        if len(peaks) == 2:
            ratio = peaks[0] / peaks[1]
            claims.append(Claim(text=f"{backend} L=2, memory at T=16,384 / T=4,096", measured=ratio, most=4.2))
    return claims


def _two_threads(size: Size, repeats: int) -> Claim:
    """The compiled form on one thread against two: the best of each, since another process on a core only adds."""
    (job,), best = jobs(("cpu",), [size], True).values(), {1: inf, 2: inf}
    for _ in range(3):
        for count in best:  # several runs after a change: PyTorch starts its threads anew
            with threads(count):
                best[count] = min(best[count], *in_turns({"cpu": job}, repeats)["cpu"])
    return Claim(text=f"cpu L=2, 1 thread / 2 threads, T={size.T:,}", measured=best[1] / best[2], least=1.7)


def _limits(panels: dict[str, list[Measurement]], H: int, D: int) -> list[dict[str, float | str]]:
    """What share of the machine's practical peak each of our forms reaches, from the flops of the definition."""
    flops, copied = matmul_rate(), copy_rate()
    print(f"this machine: float32 products {flops / 1e9:,.0f} Gflop/s, copies {copied / 1e9:,.1f} GB/s")
    shares: list[dict[str, float | str]] = []
    for work, rows in panels.items():
        factor = 1 if work == "forward" else 4  # the backward does the forward again, and twice its work
        for row in rows:
            if not row.system.startswith("prism") or row.size["T"] != 4096:
                continue
            L = row.size["L"]
            need = factor * H * delta_rule_flops(L, D, D)
            moved = 4 * H * D * (2 + 2 * L) * (1 if work == "forward" else 3)
            shares.append(
                {
                    "system": row.system,
                    "work": work,
                    "of_matmul_rate": row.tokens_per_second * need / flops,
                    "of_copy_rate": row.tokens_per_second * moved / copied,
                }
            )
    for share in shares:
        print(
            f"  {share['system']:<20} {share['work']:<17} {share['of_matmul_rate']:6.1%} of the product rate, "
            f"{share['of_copy_rate']:6.1%} of the copy rate"
        )
    return shares
