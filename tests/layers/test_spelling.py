"""One spelling of a mixer, `name:field=value,field=value`, and lists of them for hybrids."""

import pytest

from prism.errors import InputError
from prism.layers.prism import PrismConfig
from prism.layers.spelling import read_mixers, spelled_mixer, spelled_mixers, with_options


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("prism", [("prism", {})]),
        ("prism:steps=4,anchor=none", [("prism", {"steps": 4, "anchor": "none"})]),
        ("prism:base_write=true,heads=1", [("prism", {"base_write": True, "heads": 1})]),
        ("prism,prism,attention", [("prism", {}), ("prism", {}), ("attention", {})]),
        (
            "prism:steps=3,keys=shared,attention:heads=1,gla",
            [("prism", {"steps": 3, "keys": "shared"}), ("attention", {"heads": 1}), ("gla", {})],
        ),
        ("mine.mixers:Own", [("mine.mixers:Own", {})]),
        ("mine.mixers:Own:decay=a:b,heads=2,prism", [("mine.mixers:Own", {"decay": "a:b", "heads": 2}), ("prism", {})]),
        ("prism:rewrite", [("prism", {"forget": "all", "reflect": True, "residual": "state"})]),
        (
            "prism:rewrite,reflect=false,attention",
            [("prism", {"forget": "all", "reflect": False, "residual": "state"}), ("attention", {})],
        ),
        (" prism : steps = 2 , attention ", [("prism", {"steps": 2}), ("attention", {})]),
    ],
)
def test_a_list_of_mixers_is_read_without_doubt(text: str, read: list) -> None:
    assert [tuple(mixer) for mixer in read_mixers(text)] == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mixer '' lacks a name"),
        ("steps=2", "mixer 'steps=2' lacks a name"),
        ("prism,,attention", "lacks a name"),
        ("prism:steps", "'steps' is neither field=value nor a preset: known: literal, rewrite, tracking, rotations"),
        ("prism:litral", "did you mean 'literal'"),
        ("attention:literal", "attention has no presets"),
        ("prism:=3", "'prism:=3' is not field=value"),
        ("prism:step=4", "has no field 'step': did you mean 'steps'"),
        ("prizm:steps=4", "unknown mixer 'prizm': did you mean 'prism'"),
        ("prism,attention,gla", "lists 3 for 4 layers: give 4, or as many as divide them"),
        ("nowhere.at.all:Own", "mixer 'nowhere.at.all:Own' cannot be imported: No module named 'nowhere'"),
        ("prism.layers.prism:Prizm", "cannot be imported: module 'prism.layers.prism' has no attribute 'Prizm'"),
        ("prism.layers.prism:PrismConfig", "is not a subclass of prism.layers.base.mixer.Mixer"),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spelled_mixers(text, 4, heads=2)


def test_what_is_shared_goes_to_mixers_that_have_it_and_do_not_say_otherwise() -> None:
    assert spelled_mixer("prism:steps=4", heads=2, max_length=9) == PrismConfig(heads=2, steps=4)
    assert spelled_mixer("prism:heads=1", heads=2) == PrismConfig(heads=1)
    assert spelled_mixer("prism.layers.prism:Prism:steps=4", heads=2) == PrismConfig(heads=2, steps=4)
    assert spelled_mixer("hstu", max_length=9).max_length == 9


def test_a_hybrid_is_repeated_down_the_blocks() -> None:
    mixers = spelled_mixers("prism:steps=1,prism", 4, heads=2)
    assert mixers == (PrismConfig(heads=2, steps=1), PrismConfig(heads=2)) * 2
    with pytest.raises(InputError, match="is a hybrid, and one mixer is asked for"):
        spelled_mixer("prism,prism")


def test_fields_are_added_to_a_spelling() -> None:
    assert with_options("prism") == "prism"
    assert with_options("prism", "steps=0", "keys=shared") == "prism:steps=0,keys=shared"
    assert with_options("prism:steps=4", "anchor=none") == "prism:steps=4,anchor=none"
