"""`prism probe`: the nine probes × mixers × seeds, each run a JSON of its own; the table beside the paper's, curves."""

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from prism.config import at_least
from prism.data.probes import PROBES
from prism.errors import InputError
from prism.files import write_whole
from prism.layers import mixer_config
from prism.layers.mixer import MixerConfig
from prism.recipes.probing_report import show_table, write_curves
from prism.tasks.probing import ProbeModelConfig, ProbeResult, ProbeTraining, run_probe

PAPER_MIXERS = ("attention", "linear-attention", "mom", "prism")


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """What all runs of one table share."""

    dim: int = 16
    """Width D of the logic and control tasks."""
    memory_dim: int = 32
    """Width D of the memory tasks: at 16 PRISM was far from MQAR when the budget ended (docs/probing.md)."""
    layers: int = 2
    """Blocks."""
    heads: int = 2
    """Heads of every mixer."""
    ffn: int = 0
    """Hidden width of the SwiGLU in each block; 0: none, as the paper's numbers imply (docs/probing.md)."""
    length: int = 128
    """Tokens of a sequence."""
    training: Annotated[ProbeTraining, tyro.conf.arg(name="")] = field(default_factory=ProbeTraining)
    """How every run is trained."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    task: str
    mixer: str
    """A name, and after a colon fields of its config: `prism:steps=4,anchor=none`."""
    seed: int
    settings: ProbeSettings

    def path(self, out: Path) -> Path:
        """Where its result lies."""
        return out / self.task / f"{self.mixer.replace(':', '@')}-{self.seed}.json"

    def settings_json(self) -> dict[str, Any]:
        """What must be the same for a result to be this run's."""
        return asdict(self)

    def run(self, threads: int | None = None) -> ProbeResult:
        """Trains; on `threads` of torch where given."""
        if threads is not None:
            torch.set_num_threads(threads)
        s, probe = self.settings, PROBES[self.task](length=self.settings.length)
        dim = s.memory_dim if probe.kind == "memory" else s.dim
        model = ProbeModelConfig(mixer=parse_mixer(self.mixer, s.heads), dim=dim, layers=s.layers, ffn=s.ffn)
        result, _ = run_probe(probe, model, s.training, seed=self.seed)
        return result


def parse_mixer(text: str, heads: int) -> MixerConfig:
    """`name` or `name:field=value,field=value` as a config; `heads` where the fields do not say."""
    name, _, rest = text.partition(":")
    fields: dict[str, Any] = {"heads": heads}
    for option in filter(None, rest.split(",")):
        key, sign, value = option.partition("=")
        if not sign:
            raise InputError(f"mixer {text!r}: {option!r} is not field=value")
        fields[key] = {"true": True, "false": False, "none": "none"}.get(value.lower(), _number(value))
    return mixer_config(name, **fields)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def probe(
    tasks: tyro.conf.Positional[tuple[str, ...]] = (),
    /,
    *,
    mixers: tuple[str, ...] = PAPER_MIXERS,
    seeds: int = 1,
    settings: Annotated[ProbeSettings, tyro.conf.arg(name="")] = ProbeSettings(),  # noqa: B008 - frozen
    processes: int = cpu_count() or 1,
    out: Path = Path("probing"),
) -> None:
    """The nine probing tasks, for any mixers: accuracy as mean ± spread over seeds, steps to solve, learning curves.

    Runs that OUT already holds are not run again, so that the same command continues what was stopped.

    Args:
        tasks: Names from `prism list`; none: all nine.
        mixers: Names from `prism list`, with fields after a colon: prism:steps=4,anchor=none.
        seeds: Runs of each, with seeds 0, 1, …
        settings: Model and training, the same for all.
        processes: Runs at a time, each on one thread.
        out: Folder of the results: TASK/MIXER-SEED.json, table.txt, curves.png.
    """
    at_least("seeds", seeds, 1)
    at_least("processes", processes, 1)
    for task in tasks:
        PROBES[task]
    for mixer in mixers:
        for dim in (settings.dim, settings.memory_dim):
            parse_mixer(mixer, settings.heads).build(dim)
    jobs = [
        Job(task=task, mixer=mixer, seed=seed, settings=settings)
        for seed in range(seeds)
        for task in tasks or PROBES
        for mixer in mixers
    ]
    results = run_jobs(jobs, out, processes)
    found = {(job.task, job.mixer, job.seed): result for job, result in results.items()}
    write_whole(out / "table.txt", show_table(found).encode())
    write_curves(out / "curves.png", found)
    print(f"wrote {out}/table.txt and {out}/curves.png")


def run_jobs(jobs: list[Job], out: Path, processes: int = 1) -> dict[Job, ProbeResult]:
    """All results, those that `out` holds read from it, the others run and written there one by one."""
    done = {job: result for job in jobs if (result := _read(job, out)) is not None}
    missing = [job for job in jobs if job not in done]
    if done:
        print(f"{len(done)} of {len(jobs)} runs are in {out} already")
    for n, (job, result) in enumerate(_run_all(missing, processes), 1):
        done[job] = result
        write_whole(job.path(out), json.dumps(job.settings_json() | result.to_json(), indent=1).encode())
        print(
            f"{n}/{len(missing)}  {job.task:<18} {job.mixer:<18} seed {job.seed}  accuracy {result.accuracy:.3f}  "
            f"{result.steps} steps  {result.seconds:.0f} s",
            flush=True,
        )
    return {job: done[job] for job in jobs}


def _run_all(jobs: list[Job], processes: int) -> Iterator[tuple[Job, ProbeResult]]:
    if processes == 1 or len(jobs) < 2:
        for job in jobs:
            yield job, job.run()
        return
    # spawned: a forked child inherits torch's thread pool in whatever state it is
    with ProcessPoolExecutor(min(processes, len(jobs)), get_context("spawn")) as pool:
        running = {pool.submit(job.run, 1): job for job in jobs}
        for finished in as_completed(running):
            yield running[finished], finished.result()


def _read(job: Job, out: Path) -> ProbeResult | None:
    path = job.path(out)
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): remove it, and it will be run again") from error
    wanted = json.loads(json.dumps(job.settings_json()))
    for name, value in wanted.items():
        if record.pop(name, None) != value:
            raise InputError(f"{path} is of a run with other {name}: choose another --out, or remove it")
    return ProbeResult.from_json(record)
