"""The documentation against the package: its commands parse, its paths and names exist, its addresses agree."""

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from support.scripts import script

from prism import cli
from prism.errors import InputError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
from plain_docstrings import escaped, with_blocks  # noqa: E402

GENERATED = {"prism.md", "mixers.md", "commands.md"}
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(
        page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts and page.name not in GENERATED
    ),
]
FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
FOLDERS = ("", "src/prism", "docs", "tests", "src/prism/paper", "src/prism/ops")
# Written by commands or named as an example, and so in no checkout.
MADE = {
    "prism-demo/report.html",
    "text/mdn-train.txt",
    "runs/mine",
    "runs/language",
    "runs/mine/model",
    "models/current",
}


def commands_of(page: Path) -> tuple[list[str], list[str]]:
    """Every `prism …` of a page: lines of its blocks, which stand in full, and code within its sentences."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in FENCED.findall(text) for line in block.splitlines()]
    rest = FENCED.sub("", text)
    lines += [line[4:] for line in rest.splitlines() if line.startswith("    ")]
    lines = [re.sub(r"^(\$ |PRISM_DATA=\S+ )", "", line) for line in lines]
    written = [re.split(r"\s+#|\s{3,}", line)[0] for line in lines if re.match(r"prism [a-z]", line)]
    return written, [" ".join(one.split()) for one in re.findall(r"`(prism [a-z][^`]*)`", rest)]


def named(words: list[str]) -> tuple[list[str], list[str]]:
    """The commands that words name (`a | b` names two), and what follows them."""
    names = set(cli.COMMANDS)
    group = words[0] if any(name.startswith(words[0] + " ") for name in names) else ""
    if group and (len(words) == 1 or words[1] == "…"):
        return [], []
    if "|" in words:
        found, rest = [f"{group} {word}".strip() for word in words[bool(group) :] if word not in "|…"], []
    else:
        length = 2 if group else 1
        found, rest = [" ".join(words[:length])], words[length:]
    assert set(found) <= names, f"no command {set(found) - names}"
    return found, rest


def check_command(line: str, in_full: bool) -> None:
    """The command exists; its arguments parse where it is written in full, its options exist where it is not."""
    found, rest = named(shlex.split(line.replace("\\|", "|"))[1:])
    if rest and in_full and not re.search(r"[…\[]", line):
        cli._parsed(cli.COMMANDS[found[0]], rest, f"prism {found[0]}")
    for option in (word for word in rest if word.startswith("--")):
        assert option in options_of(found[0]), f"prism {found[0]} has no {option}"


@cache
def options_of(name: str) -> set[str]:
    """What `--help` of a command names."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        cli._parsed(cli.COMMANDS[name], ["--help"], f"prism {name}")
    return set(re.findall(r"--[a-z][a-z0-9-]*", shown.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists_and_parses(page: Path) -> None:
    written, mentioned = commands_of(page)
    for line in [*written, *mentioned]:
        try:
            check_command(line, line in written)
        except InputError as error:
            raise AssertionError(f"{page.name}: `{line}` does not parse") from error


def test_a_page_with_a_wrong_command_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Use `prism fit` here.\n\n```sh\nprism fit LOG --out RUN   # trains\n```\n\n    prism list\n")
    assert commands_of(page) == (["prism fit LOG --out RUN", "prism list"], ["prism fit"])
    with pytest.raises(AssertionError, match="no command"):
        check_command("prism fitt LOG", in_full=False)
    with pytest.raises(AssertionError, match="has no --nowhere"):
        check_command("prism fit … --nowhere", in_full=True)
    with pytest.raises(InputError, match="Missing from prism fit: --out"):
        check_command("prism fit LOG", in_full=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for path, name in re.findall(r"`((?:[\w.-]+/)+[\w.-]*\w/?)(?:::([\w.]+))?`", text):
        if path in MADE or path.startswith(("http", "~", "runs/", "last-", "docs/_build")):
            continue
        places = [ROOT / folder / path for folder in FOLDERS if (ROOT / folder / path).exists()]
        assert places, f"{page.name} names {path}"
        if name:
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b|^{last}\b", places[0].read_text(), re.MULTILINE), f"{path}::{name}"


def test_every_test_that_a_page_names_exists() -> None:
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")):
            assert f"def {name}(" in tests, f"{page.name} names {name}"


def test_everything_that_the_reference_describes_exists() -> None:
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        if page.name in GENERATED:
            continue
        for kind, place in re.findall(r"auto(module|class|function):: ([\w.]+)", page.read_text(encoding="utf-8")):
            module, _, name = (place, "", "") if kind == "module" else place.rpartition(".")
            file = ROOT / "src" / module.replace(".", "/")
            source = file.with_suffix(".py") if file.with_suffix(".py").exists() else file / "__init__.py"
            assert source.exists(), f"{page.name}: {place}"
            tree = ast.parse(source.read_text(encoding="utf-8"))
            defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
            assert not name or name in defined, f"{page.name}: {place}"


def test_every_public_name_of_the_operators_has_a_docstring() -> None:
    for place in ("prism.ops", "prism.models.backbone"):
        module = importlib.import_module(place)
        for name in getattr(module, "__all__", [n for n in vars(module) if n.endswith("Config")]):
            assert (getattr(module, name).__doc__ or "").strip(), f"{place}.{name}"


def test_the_addresses_of_the_project_agree() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["repository-code"] == urls["Source"]
    assert citation["url"] == urls["Documentation"]
    config = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text())
    assert config["contact_links"][0]["url"] == urls["Documentation"]


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == cli.__version__
    assert citation["preferred-citation"]["title"] == "PRISM: Parallel Residual Iterative Sequence Model"


def test_the_measurements_that_are_kept_name_their_machine() -> None:
    files = sorted((ROOT / "docs" / "benchmarks").glob("*.json"))
    assert files
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        assert found["machine"]["cpu"], file.name
        if found["benchmark"] != "rank":  # accuracies, not speeds
            assert all(row["tokens_per_second"] > 0 for row in found["measurements"]), file.name


def test_the_page_about_rank_has_the_figures_of_the_runs_that_are_kept() -> None:
    kept = json.loads((ROOT / "docs" / "benchmarks" / "rank.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "rank.md").read_text(encoding="utf-8").replace("**", "")
    rows = script("rank").rows
    for run, figures in (row for table in kept["tables"] for row in rows(table).items()):
        assert figures in page, f"{run}: docs/rank.md lacks {figures}"


def test_docstrings_are_made_safe_for_the_reference() -> None:
    assert escaped("`x` and *y*, S_t, |z|, r_ and\n`two\nlines`") == (
        "``x`` and \\*y\\*, S_t, \\|z\\|, r\\_ and\n``two lines``"
    )
    assert with_blocks(["Says.", "", "    code", "", "    more", "Args:", "    x: y"]) == [
        *["Says.", "", "::", "", "    code", "", "    more", "Args:", "    x: y"]
    ]
