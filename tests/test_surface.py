"""What `import prism` gives, and what it says where an extra is missing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import prism

NAMES = {
    "read_log", "Log", "Recommender", "FitConfig", "TrainConfig", "MIXERS", "mixer_config", "delta_rule", "InputError",
}  # fmt: skip


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def without(*modules: str) -> str:
    """The start of a script in which these cannot be imported."""
    return f"import sys; sys.modules.update(dict.fromkeys({modules!r})); "


def test_the_package_offers_its_names_and_no_others() -> None:
    assert set(prism.__all__) == NAMES | {"__version__"}
    assert dir(prism) == sorted(prism.__all__)
    for name in NAMES:
        assert getattr(prism, name).__class__ is not None
    with pytest.raises(AttributeError, match="no attribute 'Recomender'"):
        prism.Recomender  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "numba", "polars", "transformers", "matplotlib", "rich", "tyro", "accelerate")
    done = python(f"import sys, prism; dir(prism); assert not set({heavy!r}) & set(sys.modules), sorted(sys.modules)")
    assert done.returncode == 0, done.stderr


EXTRAS = ("tyro", "rich", "matplotlib", "polars", "accelerate", "safetensors", "transformers", "tokenizers")


def test_operator_layers_and_models_need_no_extra() -> None:
    done = python(
        without(*EXTRAS) + "import torch; from prism import MIXERS, TrainConfig, mixer_config, delta_rule, InputError; "
        "from prism.models.backbone import BackboneConfig; from prism.cli import main; "
        "BackboneConfig(dim=8, mixer=mixer_config('prism', heads=2)).build()(torch.randn(1, 3, 8)); main(['list'])"
    )
    assert done.returncode == 0, done.stderr
    assert "polars, accelerate, safetensors, rich is not installed" in done.stdout


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (["fit", "ml-100k", "--out", "none"], "polars", "recommend"),
        (["compare", "ml-100k", "--out", "none"], "tyro", "cli"),
        (["lm", "generate", "none"], "transformers", "lm"),
        (["probe", "mux"], "matplotlib", "plots"),
        (["bench", "layer"], "matplotlib", "cli,plots"),
        (["paper", "taxonomy"], "rich", "cli"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(words: list[str], missing: str, extra: str) -> None:
    done = python(without(missing) + f"from prism.cli import main; main({words!r})")
    assert done.returncode == 2
    assert done.stderr == f"prism: {missing} is not installed: pip install 'prism-sequence[{extra}]'\n"


def test_a_missing_extra_is_an_import_error_to_python() -> None:
    done = python(
        without("polars") + "import prism\ntry:\n    prism.Recommender\nexcept ImportError as error:\n    print(error)"
    )
    assert done.stdout == "polars is not installed: pip install 'prism-sequence[recommend]'\n", done.stderr


def test_every_extra_that_is_named_exists() -> None:
    root = Path(__file__).parents[1]
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = [path.read_text() for path in (root / "src").rglob("*.py")]
    named = {name for text in files for name in re.findall(r'needs\([^)]*extra="([^"]+)"', text)}
    assert named
    assert {extra for names in named for extra in names.split(",")} <= set(known)
