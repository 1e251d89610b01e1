"""`prism bench op --device cuda`: the kernels on the GPU that is there, beside fla's and PyTorch's attention."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from prism.bench.kernels import DEVICES, attention_work, delta_work
from prism.bench.measure import Measurement, summarise
from prism.bench.operators import Size, causal_attention, once, ours
from prism.bench.report import leave, show_measurements
from prism.errors import InputError
from prism.machine import pick_device
from prism.ops import delta_rule

Function = Callable[..., Tensor]
# bfloat16 has eight bits: what is off by more is wrong, not rounded.
TOLERANCE = 0.03


def operands(size: Size, device: torch.device) -> list[Tensor]:
    """q, k, v, beta in bfloat16 and log_alpha in float32, as a model has them under autocast."""
    *half, log_alpha = (x.detach().to(device) for x in size.operands())
    return [x.requires_grad_() for x in (*(x.bfloat16() for x in half), log_alpha)]


def _fla(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    """Gated DeltaNet's rank 1; a write of rank L as L tokens that all erase; the first decays, the last reads."""
    B, T, H, L, _ = k.shape
    apart = [x.transpose(2, 3).reshape(B, T * L, H, -1) for x in (k, v, beta.unsqueeze(-1))]
    keys, values, strengths = apart[0], apart[1], apart[2].squeeze(-1)
    queries, decays = q.repeat_interleave(L, 1), torch.zeros_like(strengths, dtype=torch.float32)
    decays = decays.index_add(1, torch.arange(0, T * L, L, device=q.device), log_alpha)
    rule = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    o = rule(queries, keys, values, decays, strengths, scale=1.0)[0]
    return o[:, L - 1 :: L]  # type: ignore[no-any-return]


def systems(L: int) -> dict[str, Function]:
    """What is timed, by label; fla where it is installed."""
    found: dict[str, Function] = {
        f"prism triton, L={L}": partial(ours, "triton"),
        f"prism chunk, L={L}": partial(ours, "chunk"),
    }
    if importlib.util.find_spec("fla") is not None:
        found[f"fla, rank 1 on {L}·T tokens"] = _fla
    return found | ({"PyTorch causal attention": causal_attention} if L == 1 else {})


def check(name: str, function: Function, device: torch.device, L: int) -> None:
    """Refuses to time what is wrong: the outputs against the definition in float64."""
    x = operands(Size(B=1, T=70, H=2, L=L, D=64), device)
    q, k, v, beta, log_alpha = (y.detach().double().cpu() for y in x)
    erase = beta if function is _fla else None  # its rank 1 erases along every direction
    want = delta_rule(q, k, v, beta, log_alpha, erase=erase, backend="reference")[0]
    error = float((function(*x).detach().double().cpu() - want).norm() / want.norm())
    if not error <= TOLERANCE:
        raise InputError(f"{name} is wrong, so nothing was timed: its output is off by {error:.1e} of its size")


def seconds(job: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """The time of each repeat, after two that do not count; on a GPU by its own clock."""
    for _ in range(2):
        job()
    taken = []
    for _ in range(repeats):
        if device.type != "cuda":
            start = time.perf_counter()
            job()
            taken.append(time.perf_counter() - start)
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        job()
        last.record()
        last.synchronize()
        taken.append(first.elapsed_time(last) / 1000)
    return taken


def measure(
    lengths: tuple[int, ...], steps: tuple[int, ...], batch: int, heads: int, size: int, repeats: int, device: str
) -> dict[str, list[Measurement]]:
    """Every system at every length, forward and forward + backward."""
    where = pick_device(device)
    panels: dict[str, list[Measurement]] = {"forward": [], "forward+backward": []}
    for L in steps:
        chosen = {n: f for n, f in systems(L).items() if where.type == "cuda" or not n.startswith("prism triton")}
        for name, function in chosen.items():
            if function is not causal_attention:
                check(name, function, where, L)
        for T in lengths:
            shape = Size(B=batch, T=T, H=heads, L=L, D=size)
            x = operands(shape, where)
            for name, function in chosen.items():
                for work, rows in panels.items():
                    taken = seconds(partial(once, function, x, work != "forward"), repeats, where)
                    fields = {"tokens": batch * T, "size": dict(vars(shape)), **summarise(taken)}
                    rows.append(Measurement(system=name, work=work, **fields))
    return panels


def beside_the_bound(rows: list[Measurement]) -> list[str]:
    """How far each forward is from the least time that its device needs; only for devices whose rates are known."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    known = next((device for device in DEVICES if device in name), None)
    lines = []
    for row in rows if known is not None else []:
        T, L, D = row.size["T"], row.size["L"], row.size["D"]
        work = attention_work(T, D, D) if "attention" in row.system else delta_work(L, D, D)
        least, by = work.least_seconds(str(known), row.size["B"] * T * row.size["H"])
        lines.append(f"{row.system}, T={T:,}: {row.seconds / least:.1f} times the least time ({by})")
    return lines


def report(
    lengths: tuple[int, ...], steps: tuple[int, ...], batch: int, heads: int, size: int, repeats: int, out: Path
) -> None:
    """Measures, prints, and writes OUT.json and OUT.png."""
    panels = measure(lengths, steps, batch, heads, size, repeats, "cuda")
    for work, rows in panels.items():
        show_measurements(rows, f"{work}, tokens per second, bfloat16: B={batch} H={heads} K=V={size}")
    for line in beside_the_bound(panels["forward"]):
        print(line)
    record = {"benchmark": "op", "device": torch.cuda.get_device_name()}
    leave(out, record, panels, [], f"The recurrence on a GPU, H={heads}, K=V={size}")
