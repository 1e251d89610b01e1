"""`prism plan`: what a log, a catalogue and a number of GPUs come to, counted by the code that would run.

Parameters, flops and states are those of the model itself, built without memory; what processes exchange is the
formula that `ops/sharded/rows.py` is held to by a test. Rates of the machine are given, and the share that is used.
"""

from dataclasses import dataclass

import torch
from tyro.conf import OmitArgPrefixes

from prism.config import Checked, Count, FromOne
from prism.display.tables import show
from prism.layers.spelling import spelled_mixers
from prism.models.backbone import BackboneConfig
from prism.recommend.model.recommender import RecommenderConfig

# Of an event in a prepared log: an item's code, a time, a user's id that repeats; measured, see docs/scale.md.
EVENT_BYTES = 6.2
ID, NUMBER, EXACT = 8, 4, 8


@dataclass(frozen=True, kw_only=True)
class Load(Checked):
    """What is to be trained, on what."""

    users: FromOne = 1e9
    """Users of the log."""
    items: FromOne = 1e8
    """Items of the catalogue."""
    events: FromOne = 1e11
    """Events of the log."""
    gpus: Count = 64
    """How many, one process each; the item table is divided between them."""
    tokens: Count = 65_536
    """Events of one step on one GPU."""
    negatives: int = 8192
    """Items drawn in a step by all GPUs, each among its own rows (sampled loss)."""
    epochs: float = 1.0
    """Passes over the log."""
    tflops: float = 300.0
    """Of one GPU in bfloat16, as its maker prints it."""
    used: float = 0.3
    """Share of that which training reaches."""
    network: float = 25.0
    """GB that one GPU sends in a second."""
    memory: float = 80.0
    """GB of one GPU."""


LOAD = Load()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Counts; bytes are of all GPUs unless they say otherwise."""

    dense: int
    """Parameters beside the item table."""
    table: float
    optimiser: float
    """Of the table: two averages and a clock for each row."""
    states: float
    """Of all users, in float32."""
    log: float
    flops: float
    """Of one event, forward and backward."""
    exchanged: float
    """Bytes that one GPU sends in a step for rows: ids, rows and gradients."""
    reduced: float
    """Bytes that one GPU sends in a step for the gradients of the blocks."""
    kept: float
    """Bytes of one GPU: its share of the table, the blocks, their optimisers."""
    compute_seconds: float
    network_seconds: float
    steps: float

    @property
    def bound(self) -> str:
        """What a step waits for."""
        return "arithmetic" if self.compute_seconds >= self.network_seconds else "the network"

    @property
    def days(self) -> float:
        """One after the other, as nothing here overlaps them yet."""
        return self.steps * (self.compute_seconds + self.network_seconds) / 86_400


def exchanged_bytes(distinct: float, dim: int, processes: int) -> float:
    """What one process sends, on average, to look up so many distinct rows and to return their gradients."""
    away = distinct * (processes - 1) / processes
    return away * (ID + 2 * NUMBER * dim)


def drawn_bytes(negatives: float, processes: int) -> float:
    """What one process sends, on average, to tell the others its draws: a code and two numbers for each."""
    return negatives / processes * (processes - 1) * (ID + 2 * EXACT)


def count(load: Load, backbone: BackboneConfig) -> Plan:
    """The whole plan."""
    with torch.device("meta"):
        model = RecommenderConfig(backbone=backbone).build(1)
    dim, dense = backbone.dim, sum(p.numel() for p in model.backbone.parameters())
    forward = model.backbone.flops() + 2 * dim * (load.negatives + 1)
    world = load.gpus
    distinct = min(2.0 * load.tokens + load.negatives, load.items)
    exchanged = exchanged_bytes(distinct, dim, world) + drawn_bytes(load.negatives, world)
    reduced = 2 * NUMBER * dense * (world - 1) / world
    table = NUMBER * dim * load.items
    optimiser = 2 * table + NUMBER * load.items
    return Plan(
        dense=dense,
        table=table,
        optimiser=optimiser,
        states=NUMBER * model.backbone.state_size() * load.users,
        log=EVENT_BYTES * load.events,
        flops=3.0 * forward,
        exchanged=exchanged,
        reduced=reduced,
        kept=(table + optimiser) / world + 4 * NUMBER * dense,
        compute_seconds=3.0 * forward * load.tokens / (load.used * load.tflops * 1e12),
        network_seconds=(exchanged + reduced) / (1e9 * load.network),
        steps=load.events * load.epochs / (load.tokens * world),
    )


def plan(
    load: OmitArgPrefixes[Load] = LOAD, mixer: str = "prism", dim: int = 256, layers: int = 4, heads: int = 4
) -> None:
    """Estimates a training of any size: memory, operations, network, days, and the bottleneck. Computed, not measured.

    Args:
        load: The log and the machines.
        mixer: A name of `prism list`.
        dim: Width of the model and of the item table.
        layers: Blocks.
        heads: Heads of each mixer.
    """
    backbone = BackboneConfig(dim=dim, layers=layers, mixer=spelled_mixers(mixer, layers, heads=heads))
    show(
        f"{load.events:,.0f} events, {load.items:,.0f} items, {load.users:,.0f} users on {load.gpus} GPUs",
        ["what", "how much", "from"],
        _rows(count(load, backbone), load),
        caption="counted from the model's own counters; nothing was measured",
        left=(0, 1, 2),
    )


def _rows(found: Plan, load: Load) -> list[list[str]]:
    fits = "fits" if found.kept < 0.8e9 * load.memory else "does not fit: more GPUs, or a smaller dim"
    rate = load.tokens * load.gpus / (found.compute_seconds + found.network_seconds)
    return [
        ["item table", size(found.table), "items × dim × 4 bytes"],
        ["its optimiser", size(found.optimiser), "two averages and one clock per row"],
        ["blocks", f"{found.dense / 1e6:,.2f}M parameters", "the backbone"],
        ["on each GPU", f"{size(found.kept)}, {fits}", f"of {size(1e9 * load.memory)}, before activations"],
        ["users' states", size(found.states), "users × state_size × 4 bytes, for serving"],
        ["prepared log", size(found.log), f"{EVENT_BYTES} bytes per event"],
        ["flops of an event", f"{found.flops / 1e6:,.1f} Mflop", "forward and backward, drawn items included"],
        ["sent in a step, rows", f"{size(found.exchanged)} by each GPU", "ids, rows and gradients to and from owners"],
        ["sent in a step, blocks", f"{size(found.reduced)} by each GPU", "all-reduce of their gradients"],
        [
            "a step",
            f"{1e3 * found.compute_seconds:,.1f} ms + {1e3 * found.network_seconds:,.1f} ms",
            "arithmetic + network",
        ],
        ["events in a second", f"{rate:,.0f}", "all GPUs"],
        ["training", f"{found.days:,.2f} days", f"{found.steps:,.0f} steps"],
        ["bound by", found.bound, "the longer part of a step"],
    ]


def size(count: float) -> str:
    """Bytes in the largest unit of which there is at least one."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:.0f} B"
