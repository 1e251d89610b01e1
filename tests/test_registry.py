"""Names to objects: what others add to a registry is found, and cannot take a name that is taken."""

import subprocess
import sys
from pathlib import Path

import pytest

from prism.errors import InputError
from prism.layers.prism import Prism
from prism.registry import OpenRegistry, UnknownNameError


def mixers() -> OpenRegistry:
    entries = {"prism": "prism.layers.prism:Prism"}
    return OpenRegistry("mixer", entries, base="prism.layers.base.mixer:Mixer", group="prism.mixers")


class Own(Prism):
    """A mixer of one's own."""


def test_a_class_or_its_place_is_known_by_the_name_it_was_given() -> None:
    registry = mixers()
    registry.register("own", Own)
    registry.register("same", "prism.layers.prism:Prism")
    assert registry["own"] is Own
    assert registry["same"] is registry["prism"] is registry["prism.layers.prism:Prism"] is Prism
    assert list(registry) == ["prism", "own", "same"]
    assert registry.summary("own") == "A mixer of one's own."


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("prism", Own, "mixer 'prism' is prism.layers.prism:Prism already: choose another name"),
        ("own", "prism.layers.prism", "mixer 'own' must be a class or 'module:Class', got 'prism.layers.prism'"),
        ("own:steps=2", Own, "name has no colon, comma, equals sign or space"),
    ],
)
def test_a_name_that_cannot_be_given_is_one_line(name: str, entry: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mixers().register(name, entry)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [":x", "..x:y", ".x:y", "x.:y", "no_such_module:x", "prism:", "prism:NoSuchClass"])
def test_a_place_where_no_class_can_be_is_one_line(name: str) -> None:
    with pytest.raises(UnknownNameError, match="cannot be imported: ") as caught:
        mixers()[name]
    assert "\n" not in str(caught.value)


def test_registering_the_same_again_changes_nothing() -> None:
    registry = mixers()
    registry.register("own", Own)
    registry.register("own", Own)
    assert len(registry) == 2


def test_an_installed_package_adds_mixers_by_an_entry_point(tmp_path: Path) -> None:
    """As pip leaves it: a module and a .dist-info beside it."""
    source = "from prism.layers.prism import Prism\n\n\nclass Own(Prism):\n    '''Out of another package.'''\n"
    (tmp_path / "others_mixers.py").write_text(source)
    facts = tmp_path / "others-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    points = "[prism.mixers]\nown = others_mixers:Own\nprism = others_mixers:Own\n"
    (facts / "entry_points.txt").write_text(points)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from prism import MIXERS, mixer_config; "
        "assert 'others_mixers' not in sys.modules; assert 'own' in MIXERS; "
        "assert MIXERS.summary('own') == 'Out of another package.'; assert 'torch' not in sys.modules; "
        "assert mixer_config('own', steps=3).steps == 3; "
        "assert MIXERS['prism'].__module__ == 'prism.layers.prism.mixer'"  # what ships keeps its names
    )
    subprocess.run([sys.executable, "-c", script], check=True)
