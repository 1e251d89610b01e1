"""`prism probe`: probes × mixers × seeds, each run a JSON of its own; the table beside the paper's, curves."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from prism.config import one_of, positive, some
from prism.errors import InputError, needs
from prism.files import write_whole
from prism.machine import pick_device, use_threads
from prism.probes.report import has_lengths, show_table, write_curves, write_lengths
from prism.probes.settings import RECIPES, ProbeSettings, Recipe
from prism.probes.tasks.base import PAPER_PROBES
from prism.probes.training import ProbeResult, run_probe
from prism.train.jobs import at_once, finished, run_jobs

PAPER_MIXERS = ("attention", "linear-attention", "mom", "prism")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training of one mixer on one task with one seed."""

    task: str
    mixer: str
    """As it was spelled: `prism:steps=4,anchor=none`, `prism,attention`."""
    seed: int
    settings: ProbeSettings
    device: str | None = None

    def path(self, out: Path) -> Path:
        return out / self.task.replace(":", "@") / f"{self.mixer.replace(':', '@')}-{self.seed}.json"

    def settings_json(self) -> dict[str, Any]:
        """What must be the same for a result to be this run's."""
        return {name: value for name, value in asdict(self).items() if name != "device"}

    def run(self) -> ProbeResult:
        s, probe = self.settings, self.settings.probe(self.task)
        model, device = s.model(probe, self.mixer), pick_device(self.device)
        result, _ = run_probe(probe, model, s.training, seed=self.seed, device=device)
        return result

    def read(self, record: dict[str, Any]) -> ProbeResult:
        return ProbeResult.from_json(record)

    def line(self, result: ProbeResult) -> str:
        return (
            f"{self.task:<18} {self.mixer:<18} seed {self.seed}  accuracy {result.accuracy:.3f}  "
            f"{result.steps} steps  {result.seconds:.0f} s"
        )


def probe(
    tasks: tyro.conf.Positional[tuple[str, ...]] = (),
    /,
    *,
    mixers: tuple[str, ...] = PAPER_MIXERS,
    seeds: int = 1,
    recipe: Recipe = "ours",
    settings: Annotated[ProbeSettings, tyro.conf.arg(name="")] = RECIPES["ours"],
    processes: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    only_finished: bool = False,
    out: Path = Path("probing"),
) -> None:
    """The probing tasks, for any mixers: accuracy as mean ± spread over seeds, steps to solve, learning curves.

    Runs that OUT already holds are not run again, so that the same command continues what was stopped.

    Args:
        tasks: Names from `prism list`, with fields after a colon: multi-value-recall:roles=4; none: the paper's nine.
        mixers: Names from `prism list`, with fields after a colon: prism:steps=4,anchor=none; hybrids: prism,attention.
        seeds: Runs of each, with seeds 0, 1, …
        recipe: Where the options below start: ours, or the training of the code released with the paper.
        settings: Model and training, the same for all.
        processes: Runs at a time; default: as many as the cores have threads for, 1 on a GPU.
        device: Where the models run, e.g. cpu or cuda; default: a GPU where there is one.
        threads: Threads of each run; default: one where several run at a time, else as many as torch takes.
        only_finished: Train nothing: the table and the pictures of those runs that OUT holds.
        out: Folder of the results: TASK/MIXER-SEED.json, table.txt, curves.png, lengths.png.
    """
    needs("matplotlib", extra="plots")  # before hours of training, not after
    some(mixers=mixers)
    use_threads(threads)
    processes = at_once(pick_device(device), threads) if processes is None else processes
    positive(seeds=seeds, processes=processes)
    one_of("recipe", recipe, Recipe)
    if settings is RECIPES["ours"]:  # called from Python with a recipe alone
        settings = RECIPES[recipe]
    for task in tasks or PAPER_PROBES:
        for mixer in mixers:
            settings.model(settings.probe(task), mixer).build()  # refuses what does not fit
    jobs = [
        Job(task=task, mixer=mixer, seed=seed, settings=settings, device=device)
        for seed in range(seeds)
        for task in tasks or PAPER_PROBES
        for mixer in mixers
    ]
    results = finished(jobs, out) if only_finished else run_jobs(jobs, out, processes, threads)
    if not results:
        raise InputError(f"{out} holds none of these runs: leave --only-finished out, and they are run")
    found = {(job.task, job.mixer, job.seed): result for job, result in results.items()}
    write_whole(out / "table.txt", show_table(found).encode())
    growths = {job.task: settings.training.growths(settings.probe(job.task)) for job in jobs}
    write_curves(out / "curves.png", found, growths)
    written = ["table.txt", "curves.png"]
    if has_lengths(found):
        write_lengths(out / "lengths.png", found)
        written.append("lengths.png")
    print(f"wrote {', '.join(f'{out}/{name}' for name in written)}")
