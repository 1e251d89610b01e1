"""Pages written at each build from what the package itself lists: its names, every mixer, every command."""

import contextlib
import io
import os
from pathlib import Path
from typing import Any


def mixers_page() -> str:
    """One section per entry of `MIXERS`: the class, its config and that config's fields."""
    from prism.layers import MIXERS

    parts = ["# Mixers", ""]
    parts += [
        "Every entry of `prism.layers.MIXERS`, under one contract ([`Mixer`](#contract)). A name, and fields that",
        'differ from the defaults, make a layer: `mixer_config("prism", heads=4, steps=3).build(128)`.',
        "",
        "| name | what it is |",
        "|---|---|",
        *(f"| [`{name}`](#mixer-{name}) | {table_cell(MIXERS.summary(name))} |" for name in MIXERS),
        "",
    ]
    documented: set[type] = set()
    for name in MIXERS:
        mixer = MIXERS[name]
        parts += [f"(mixer-{name})=", f"## {name}", "", "```{eval-rst}"]
        parts += [*autoclass(mixer, "   :no-members:"), ""]
        if mixer.Config in documented:
            parts += [f"Its config is ``{mixer.Config.__name__}``, above.", ""]
        else:
            documented.add(mixer.Config)
            parts += [*autoclass(mixer.Config, "   :members:"), ""]
        parts += ["```", ""]
    parts += ["(contract)=", "## The contract", "", "```{eval-rst}"]
    for place in ("prism.layers.mixer_config", "prism.registry.Registry"):
        kind = "autofunction" if place.rpartition(".")[2].islower() else "autoclass"
        parts += [f".. {kind}:: {place}", *(["   :members:"] if kind == "autoclass" else []), ""]
    for place in ("prism.layers.base.mixer.MixerConfig", "prism.layers.base.mixer.Mixer"):
        parts += [f".. autoclass:: {place}", "   :members:", ""]
    return "\n".join([*parts, "```", ""])


def package_page() -> str:
    """What `import prism` gives, each name with where it is described."""
    import prism

    pages = {"ops": "ops.md", "layers": "mixers.md", "models": "models.md", "lm": "lm.md"}
    parts = ["# The package", "", "What `import prism` gives, each imported when it is first asked for:", ""]
    parts += ["| name | what it is | its page |", "|---|---|---|"]
    for name in (name for name in prism.__all__ if not name.startswith("_")):
        thing = getattr(prism, name)
        place = getattr(thing, "__module__", "prism.layers").split(".")[1]
        about = "mixers by name" if name == "MIXERS" else (thing.__doc__ or "").strip().partition("\n")[0]
        page = {"errors": "prism.md"}.get(place, pages.get(place, "recommend.md"))
        parts.append(f"| `prism.{name}` | {table_cell(about)} | [{page.removesuffix('.md')}]({page}) |")
    return "\n".join([*parts, "", "```{eval-rst}", ".. autoclass:: prism.errors.InputError", "```", ""])


def autoclass(cls: type, *options: str) -> list[str]:
    """The directive for a class, where it is defined."""
    return [f".. autoclass:: {cls.__module__}.{cls.__qualname__}", *options]


def table_cell(text: str) -> str:
    """Text that does not end a cell."""
    return text.replace("|", "\\|")


def commands_page() -> str:
    """One section per command: what `--help` prints."""
    from prism.cli import COMMANDS

    parts = ["# Commands", "", "What `prism COMMAND --help` prints, for every command.", ""]
    parts += ["| command | what it does |", "|---|---|"]
    parts += [
        f"| [`prism {name}`](#command-{name.replace(' ', '-')}) | {table_cell(COMMANDS.summary(name))} |"
        for name in COMMANDS
    ]
    for name in COMMANDS:
        parts += ["", f"(command-{name.replace(' ', '-')})=", f"## prism {name}", "", "```text"]
        parts += [help_of(name), "```"]
    return "\n".join([*parts, ""])


def help_of(name: str) -> str:
    """The help of one command, as wide as a page's block of code."""
    from prism.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*name.split(), "--help"])
    return "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())


def write(app: Any) -> None:
    """The pages, written only where they changed, so that a second build is quick."""
    os.environ |= {"COLUMNS": "84", "NO_COLOR": "1", "TERM": "dumb"}
    pages = {"prism.md": package_page(), "mixers.md": mixers_page(), "commands.md": commands_page()}
    for name, text in pages.items():
        file = Path(app.srcdir) / "reference" / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Before Sphinx looks which pages there are."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
