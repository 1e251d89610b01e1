"""GPU kernels without a GPU: what they must compute and move, the least time that takes, and what the compiler says."""

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from prism.config import positive
from prism.display.tables import show
from prism.errors import InputError

Target = Literal["sm_80", "sm_90", "sm_100", "gfx942"]
# Dense bfloat16 operations and bytes per second, from the makers' data sheets.
DEVICES = {"A100": (312e12, 2.04e12), "H100": (989e12, 3.35e12), "MI300X": (1307e12, 5.3e12)}
FLA_CHUNK = 64


@dataclass(frozen=True)
class Work:
    """Floating-point operations of products, and bytes that memory must give and take, per token and head, forward."""

    flops: float
    bytes: float

    def least_seconds(self, device: str, tokens: int) -> tuple[float, str]:
        """The lower bound for so many tokens × heads, and what bounds it."""
        rate, width = DEVICES[device]
        compute, memory = tokens * self.flops / rate, tokens * self.bytes / width
        return max(compute, memory), "compute" if compute > memory else "memory"


CHUNK, BLOCK = 16, 64  # rows of a chunk and values of a program (ops/triton/delta/launch.py)
ANCHOR_TOKENS = 64  # of one share in the gradient of the convolution's weights (ops/triton/fused.py)


def delta_work(L: int, K: int, V: int, *, kept: bool = False) -> Work:
    """The recurrence of rank L in chunks: one solve for any L (ops/triton/delta/forward.py).

    Each block of values computes what is inside a chunk again; what it reads again, caches give. With `kept`, the state
    before each span of chunks is written too, for a backward.
    """
    C, blocks = CHUNK, ceil(V / BLOCK)
    inside = blocks * C * 2 * L * K  # K_1 K_lᵀ and Q K_lᵀ
    solve = blocks * 2 * C**2 * (log2(C) - 1)  # joining blocks until one is left
    outputs = C * 2 * L * V  # A_l W_l or X R, and P_l Y_l
    span = C * (16 if max(K, V) > 128 else 8)
    return Work(2 * (inside + solve + outputs + (2 + L) * K * V), operand_bytes(L, K, V) + kept * 2 * K * V / span)


def operand_bytes(L: int, K: int, V: int) -> int:
    """Bytes of one token and head: q, k, v, β and the output in bfloat16, the decay and the erasure in float32."""
    return 2 * (K + L * K + L * V + V + L) + 2 * 4


def backward_work(L: int, K: int, V: int) -> Work:
    """The backward's four kernels: the states once more, the walk back, gradients of values and of keys."""
    C, blocks, parts = CHUNK, ceil(V / BLOCK), ceil(K / 64)
    restore = blocks * (C * L * K + 2 * C**2 * (log2(C) - 1)) + C * L * V + (1 + L) * K * V
    walk = blocks * C * K + 2 * C * V + 3 * K * V
    values = (L - 1) * (2 * C * K + 2 * C * V + K * V)
    keys = 2 * K * V + L * K * V + parts * L * (2 * C * V + 2 * C * K) + 4 * L * C * K
    states, rows = 2 * K * V / C, 2 * V
    moved = 2.0 * operand_bytes(L, K, V) + 4 * rows  # operands, dO and the gradients; U and dR written and read
    moved += 4 * states + 4 * C  # S and dS of every chunk written and read, and the inverses
    return Work(2 * (restore + walk + values + keys), moved)


def expanded_work(L: int, K: int, V: int, *, C: int = FLA_CHUNK) -> Work:
    """The same as L·T tokens of rank 1 in flash-linear-attention's three kernels (w and u, states, outputs)."""
    flops = 2 * (C * (3 * K + 2 * V) + 3 * K * V)
    solved, states = 2 * (K + V) + K + 2 * V, 2 * K * V / C + K  # w, u and v_new written and read; k read again
    return Work(L * flops, 2 * L * (2 * K + 2 * V + 2 + solved + states))


def attention_work(T: int, K: int, V: int) -> Work:
    """Causal attention whose scores never reach memory."""
    return Work(T * (K + V), 2 * (2 * K + 2 * V))


def anchor_bytes(*, fused: bool, window: int = 5) -> tuple[float, float]:
    """Bytes per token and channel, forward and backward, of SiLU(convolution) and LayerNorm: in one kernel, or in two.

    In bfloat16; each operand counts once for each kernel that reads it. Fused, the backward reads the input and the
    gradient twice: what all channels of a token share comes first.
    """
    forward, backward = (2, 5) if fused else (4, 6)
    shares = 2 * 4 * (window + 2 * fused) / ANCHOR_TOKENS  # float32, written and read
    return 2.0 * forward, 2.0 * backward + shares


def kernels(
    *,
    target: Target | None = None,
    steps: int = 2,
    head: int = 128,
    length: int = 4096,
    heads: int = 16,
    batch: int = 8,
) -> None:
    """Roofline of the recurrence on three GPUs; with --target, what Triton's compiler makes of each kernel for it.

    Args:
        target: Compile for this GPU, which need not be here (minutes).
        steps: L, the rank of the write.
        head: Width K = V of a head's keys and values.
        length: Tokens of a sequence.
        heads: Heads.
        batch: Sequences.
    """
    positive(steps=steps, head=head, length=length, heads=heads, batch=batch)
    rows = {
        f"prism, L = {steps}": delta_work(steps, head, head),
        f"prism, L = {steps}, in training": delta_work(steps, head, head, kept=True),
        f"prism, L = {steps}, its backward": backward_work(steps, head, head),
        f"rank 1 on {steps}·T tokens (fla)": expanded_work(steps, head, head),
        f"attention, T = {length:,}": attention_work(length, head, head),
    }
    cells = []
    for name, work in rows.items():
        bounds = (work.least_seconds(device, batch * length * heads) for device in DEVICES)
        least = (f"{1e3 * seconds:.2f} ms ({by})" for seconds, by in bounds)
        cells.append([name, f"{work.flops:,.0f}", f"{work.bytes:,.0f}", *least])
    title = f"lower bounds, nothing measured: B = {batch}, T = {length:,}, H = {heads}, K = V = {head}"
    columns = ["bfloat16, forward", "flops per token·head", "bytes", *(f"{name}, at least" for name in DEVICES)]
    show(title, columns, cells)
    anchor = {name: anchor_bytes(fused=fused) for name, fused in (("one pass", True), ("the norm apart", False))}
    lines = [[name, f"{a:.1f}", f"{b:.1f}", f"{a + b:.1f}"] for name, (a, b) in anchor.items()]
    show("the anchor, bytes per token and channel", ["SiLU(conv), LayerNorm", "forward", "backward", "both"], lines)
    if target is not None:
        _compiled(target, steps, head)


def _compiled(target: Target, steps: int, head: int) -> None:
    try:
        from prism.ops.triton.ahead import KERNELS, compile_delta
        from prism.ops.triton.around.ahead import KERNELS as AROUND
        from prism.ops.triton.around.ahead import compile_around
    except ImportError as error:
        raise InputError(f"--target needs Triton ({error}): pip install 'prism-sequence[gpu]'") from error
    rows = []
    for name in (*KERNELS, *AROUND):
        around = name in AROUND
        found = compile_around(name, target) if around else compile_delta(name, target, L=steps, K=head, V=head)
        numbers = (found.registers, found.spilled, found.shared, found.products, found.ordinary)
        rows.append([name, *(f"{n:,}" for n in numbers)])
    columns = ["kernel", "registers", "spilled", "shared, bytes", "tensor-core ops", "products elsewhere"]
    show(f"{target}, L = {steps}, K = V = {head}", columns, rows)
