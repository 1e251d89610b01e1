"""The program `prism`: finds the command, hands it the rest of the line, turns a user's mistake into one line."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from inspect import signature
from io import StringIO
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from prism import __version__
from prism.display.text import notes_as_lines, plain
from prism.errors import InputError, MissingExtraError, needs, suggest
from prism.registry import Registry

COMMANDS: Registry[Callable[..., Any]] = Registry(
    "command",
    {
        "demo": "prism.recommend.demo.command:demo",
        "fit": "prism.recommend.commands.fit:fit",
        "evaluate": "prism.recommend.commands.fit:evaluate",
        "recommend": "prism.recommend.commands.recommend:recommend",
        "compare": "prism.recommend.commands.compare:compare",
        "similar": "prism.recommend.commands.production:similar",
        "because": "prism.recommend.commands.production:because",
        "refit": "prism.recommend.commands.production:refit",
        "export": "prism.recommend.commands.production:export",
        "update": "prism.recommend.commands.production:update",
        "serve": "prism.recommend.serve.command:serve",
        "serve-key": "prism.recommend.serve.command:serve_key",
        "prepare": "prism.recommend.data.prepared.prepare:prepare",
        "plan": "prism.recommend.commands.plan:plan",
        "lm train": "prism.lm.train:train",
        "lm evaluate": "prism.lm.commands:evaluate",
        "lm generate": "prism.lm.commands:generate",
        "lm recipes": "prism.lm.recipes:language_recipes",
        "probe": "prism.probes.command:probe",
        "paper theory": "prism.paper.theory.command:theory",
        "paper capacity": "prism.paper.capacity:capacity",
        "paper literal": "prism.paper.literal:literal",
        "paper rank": "prism.paper.rank:rank",
        "paper language": "prism.paper.language.command:language",
        "paper language-ablation": "prism.paper.language.command:language_ablation",
        "paper ablation": "prism.paper.ablation.command:ablation",
        "paper ml1m": "prism.paper.ml1m:ml1m",
        "paper taxonomy": "prism.paper.taxonomy:taxonomy",
        "paper throughput": "prism.paper.throughput:throughput",
        "bench op": "prism.bench.op:op",
        "bench layer": "prism.bench.layer:layer",
        "bench model": "prism.bench.model:model",
        "bench decode": "prism.bench.decode:decode",
        "bench recommend": "prism.bench.recommend:recommend",
        "bench retrieval": "prism.bench.retrieval:retrieval",
        "bench prepared": "prism.bench.prepared:prepared",
        "bench sharded": "prism.bench.sharded:sharded",
        "bench serve": "prism.bench.serve:serve",
        "bench kernels": "prism.bench.kernels:kernels",
        "list": "prism.cli:list_names",
    },
)
# Above which command of the overview a heading stands.
HEADINGS = {
    "demo": "recommendations from a log of (user, item, time)",
    "lm train": "language models from text",
    "probe": "the paper: probing tasks, tables and figures",
    "bench op": "speed and memory",
    "list": "names",
}
# Commands where one option, given the line's arguments, sets what the others start from: new defaults by parameter.
STARTS: Registry[Callable[[Sequence[str]], dict[str, Any]]] = Registry(
    "command", {"probe": "prism.probes.settings:recipe_defaults"}
)
# What `prism list` shows: heading, and where the names stand.
LISTS = {"mixers": "prism.layers:MIXERS", "probes": "prism.probes.tasks.base:PROBES"}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command; exit code 2 and one line for what the user got wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _wait_quietly()
    try:
        with notes_as_lines():
            _run(arguments)
    except InputError as error:
        print(f"prism: {plain(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        sys.stderr.close()
        sys.exit(141)


def _wait_quietly() -> None:
    """OpenMP threads that have nothing to do sleep after a short spin; a setting of the user's own is left alone.

    A thread that spins for the other ones takes the core that they need as soon as another program runs too. The
    libraries read this once, when torch loads: nothing above imports it.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "30000"  # none at all, PASSIVE, trained the demo at 0.75 of this speed


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(list(COMMANDS)))
        return
    if arguments[0] in ("--version", "-V"):
        print(f"prism {__version__}")
        return
    if arguments == ["list"]:  # reads no arguments: it needs no extra for that, and answers at once
        list_names()
        return
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if len(arguments) >= length and name in COMMANDS:
            needs("tyro", "rich", extra="cli")
            try:
                starts = STARTS[name](arguments[length:]) if name in STARTS else {}
                _parsed(COMMANDS[name], arguments[length:], f"prism {name}", starts)()
            except MissingExtraError:
                raise
            except InputError as error:
                raise InputError(_with_options(str(error), COMMANDS[name])) from error
            return
    _explain(arguments)


def _parsed(
    command: Callable[..., Any], arguments: list[str], prog: str, starts: dict[str, Any] | None = None
) -> Callable[[], Any]:
    """The command with its arguments read; a config that refuses a value does so in its own one line."""
    import tyro

    taken: list[Callable[[], Any]] = []

    @wraps(command)
    def take(*args: Any, **named: Any) -> None:
        taken.append(partial(command, *args, **named))

    shape, types = signature(command), _shown(command)
    own = [
        p.replace(default=(starts or {}).get(p.name, p.default), annotation=types[p.name])
        for p in shape.parameters.values()
    ]
    take.__signature__, take.__annotations__ = shape.replace(parameters=own), types  # type: ignore[attr-defined]
    del take.__wrapped__  # its own types are those that count
    errors = StringIO()
    try:
        with redirect_stderr(errors), _fields_shown(command):
            tyro.cli(take, args=arguments, prog=prog)
    except SystemExit as stop:
        reason: BaseException | None = stop
        while reason is not None and not isinstance(reason, InputError):
            reason = reason.__context__
        if reason is not None:
            raise reason from None
        if stop.code and (line := _one_line(errors.getvalue())):
            raise InputError(f"{line}; `{prog} --help` shows the options") from None
        sys.stderr.write(errors.getvalue())
        raise
    return taken[0]


def _one_line(box: str) -> str:
    """What tyro says in a box: its first part, and the option that it thinks was meant."""
    parts: list[list[str]] = [[]]
    for line in (line.strip("│ ") for line in box.splitlines() if not line.startswith("╭")):
        if line and not line.strip("─-╰╯"):
            parts.append([])
        else:
            parts[-1] += line.split()
    message, *more = parts if "╭" in box else parts[1:] or [[]]  # without box characters the title is a part
    meant = next((part[3] for part in more if part[:3] == ["Perhaps", "you", "meant:"]), "")
    return " ".join(message).rstrip(".") + (f", did you mean {meant}?" if meant else "")


def _shown(command: Callable[..., Any]) -> dict[str, Any]:
    """The types of a command's parameters, with what its help shows of each.

    A positional one goes by its name (RUN, not PATH); line breaks of the docstring are not kept; and where leaving an
    option out has a meaning, its docstring says it, so that `None` need not.
    """
    from docstring_parser import parse
    from tyro.conf import Positional, arg

    types = get_type_hints(command, include_extras=True)
    about = {p.arg_name: " ".join((p.description or "").split()) for p in parse(command.__doc__ or "").params}
    positional = Positional[int].__metadata__[0]  # type: ignore[attr-defined]
    for name, parameter in signature(command).parameters.items():
        if not is_dataclass(parameter.default):
            by_name = positional in getattr(types[name], "__metadata__", ())
            shown = _placeholder(types[name], name.upper() if by_name else None)
            hint = "" if parameter.default in (None, ()) else None
            types[name] = Annotated[types[name], arg(help=about.get(name), metavar=shown, help_behavior_hint=hint)]
    return types


@contextmanager
def _fields_shown(command: Callable[..., Any]) -> Iterator[None]:
    """While the line is read: where leaving out a field of a config has a meaning, its line says it, not `None`."""
    from tyro.conf import arg

    waiting: list[Any] = [type(p.default) for p in signature(command).parameters.values() if is_dataclass(p.default)]
    before: dict[Any, dict[str, Any]] = {}
    while waiting:
        for cls in (one for one in waiting.pop().__mro__ if is_dataclass(one) and one not in before):
            before[cls] = dict(cls.__annotations__)
            parts = [part for kind in before[cls].values() for part in (kind, *get_args(kind))]
            waiting += [part for part in parts if isinstance(part, type) and is_dataclass(part)]
    try:
        for cls, kinds in before.items():
            for name, kind in kinds.items():
                if type(None) in get_args(kind) or getattr(cls, name, None) == ():
                    shown = arg(metavar=_placeholder(kind, None), help_behavior_hint="")
                    cls.__annotations__[name] = Annotated[kind, shown]
        yield
    finally:
        for cls, kinds in before.items():
            cls.__annotations__ = kinds


def _placeholder(annotation: Any, name: str | None) -> str | None:
    """What stands for a value in the help; None: what tyro makes of its type."""
    kind = next((part for part in get_args(annotation) if part is not type(None)), annotation)
    kind = kind.__origin__ if get_origin(kind) is Annotated else kind
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, get_args(kind)))}}}"
    if get_origin(kind) is tuple or get_origin(annotation) is tuple:
        inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
        return f"[{name or inner.__name__.upper()} ...]"
    if name is not None or type(None) not in get_args(annotation) or not isinstance(kind, type):
        return name
    return "{True,False}" if kind is bool else kind.__name__.upper()


def _with_options(message: str, command: Callable[..., Any]) -> str:
    """An error's `user=` as the command line has it, `--user`, and its `history=[7, 12]`: `--history 7 12`."""
    taken = signature(command).parameters
    flat = [f.name for p in taken.values() if is_dataclass(p.default) for f in fields(p.default)]
    names = "|".join([*taken, *flat])

    def option(found: re.Match[str]) -> str:
        return f"--{found[1].replace('_', '-')} {found[2].strip('[]').replace(',', '')}".rstrip()

    return re.sub(rf"""(?<![\w.:-])({names})=('[^']*'|"[^"]*"|\[[^\]]*\]|\w*)""", option, message)


def _explain(arguments: list[str]) -> None:
    """A group without its command prints its commands; anything else is a mistake with a suggestion."""
    group = [name for name in COMMANDS if name.startswith(arguments[0] + " ")]
    if group and (len(arguments) == 1 or arguments[1] in ("-h", "--help")):
        print(_overview(group))
        return
    if group:
        tails = [name.partition(" ")[2] for name in group]
        raise InputError(f"unknown command '{arguments[0]} {arguments[1]}': {suggest(arguments[1], tails)}")
    heads = dict.fromkeys(name.partition(" ")[0] for name in COMMANDS)
    raise InputError(f"unknown command {arguments[0]!r}: {suggest(arguments[0], heads)}")


def _overview(names: list[str]) -> str:
    width = max(len(name) for name in names)
    lines = [f"prism {__version__}: sequence models whose memory does not grow, and a recommender built on them"]
    for name in names:
        if name in HEADINGS or name == names[0]:
            lines += ["", HEADINGS.get(name, "commands") + ":"]
        lines.append(f"  prism {name:<{width}}  {COMMANDS.summary(name)}")
    return "\n".join([*lines, "", "`prism COMMAND --help` shows the options of a command."])


def list_names() -> None:
    """Mixers, probes, data sets and tables of the paper: everything that is chosen by name."""
    for heading, place in LISTS.items():
        registry: Registry[Any] = Registry("list", {heading: place})[heading]
        _show(heading, {name: registry.summary(name) for name in registry})
    try:
        from prism.recommend.data.catalogue import KNOWN

        _show("data sets", {name: known.about for name, known in KNOWN.items()})
    except MissingExtraError as error:
        _show("data sets", {"none": str(error)})
    tables = [name for name in COMMANDS if name.startswith("paper ")]
    _show("tables and figures of the paper", {f"prism {name}": COMMANDS.summary(name) for name in tables})


def _show(heading: str, lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    print(f"{heading}:", *(f"  {name:<{width}}  {line}" for name, line in lines.items()), sep="\n")


if __name__ == "__main__":
    main()
