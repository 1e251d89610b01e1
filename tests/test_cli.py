"""The program: quick to answer, a mistake is one line and exit code 2."""

import resource
import subprocess
import sys

import pytest

from prism import cli


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "prism.cli", *words], capture_output=True, text=True)


@pytest.mark.parametrize("words", [("--help",), ("list",), ("--version",)])
def test_help_and_lists_do_not_wait_for_torch(words: tuple[str, ...]) -> None:
    script = f"import sys; from prism.cli import main; main({list(words)!r}); assert 'torch' not in sys.modules"
    taken = []
    for _ in range(3):  # the best of three, and time on the processor: the clock counts what else the machine does
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("benhc",), "prism: unknown command 'benhc': did you mean 'bench'?"),
        (("bench", "lyer"), "prism: unknown command 'bench lyer': did you mean 'layer'?"),
        (("bench", "layer", "--mixers", "prizm"), "prism: unknown mixer 'prizm': did you mean 'prism'?"),
        (("probe", "xor", "--mixers", "prism:reflect=maybe"), "prism: reflect must be true or false, got 'maybe'"),
        (("probe", "xor", "--mixers", "prism:steps=2.5"), "prism: steps must be a whole number, got 2.5"),
        (("probe", "xor", "--mixers", "gla:damping=slow"), "prism: damping must be a number, got 'slow'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words: tuple[str, ...], message: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr.strip() == message
    assert done.stdout == ""


def test_a_wrong_option_exits_with_2() -> None:
    done = run("bench", "op", "--lenghts", "5")
    assert done.returncode == 2
    assert "--lenghts" in done.stderr


def test_a_group_alone_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["bench"])
    assert "prism bench op" in capsys.readouterr().out


def test_every_heading_of_the_overview_stands_above_a_command() -> None:
    assert set(cli.HEADINGS) <= set(cli.COMMANDS)
    assert next(iter(cli.COMMANDS)) in cli.HEADINGS


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("recommend", "prism recommend [-h] [OPTIONS] RUN"),
        ("similar", "prism similar [-h] RUN ITEM [--k INT] [--allow-where [STR ...]] [--device STR]"),
        ("prepare", "prism prepare [-h] [OPTIONS] [LOGS ...]"),
        ("fit", "prism fit [-h] [OPTIONS] DATA"),
        ("serve", "prism serve [-h] [OPTIONS] MODEL"),
        ("lm train", "prism lm train [-h] [OPTIONS] [TEXT ...]"),
    ],
)
def test_help_calls_arguments_by_name_and_never_speaks_of_none(
    command: str, usage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert ended.value.code in (0, None)
    assert usage in text
    assert "{None" not in text
    assert "(default: None)" not in text
    if command not in ("fit", "lm train"):  # their configs' fields speak to Python too
        assert "None" not in text


def test_every_command_has_a_summary_and_exists() -> None:
    for name in cli.COMMANDS:
        assert cli.COMMANDS.summary(name)
        assert callable(cli.COMMANDS[name])


def test_list_names_every_mixer_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    from prism.layers import MIXERS

    cli.list_names()
    lines = capsys.readouterr().out.splitlines()
    for name in MIXERS:
        assert any(line.split()[:1] == [name] and len(line.split()) > 3 for line in lines), name


def test_importing_the_package_is_light() -> None:
    script = (
        "import sys, prism, prism.layers; "
        "assert not {'torch', 'transformers', 'numba', 'polars'} & set(sys.modules), sorted(sys.modules); "
        "import prism.ops; assert not {'transformers', 'numba', 'triton', 'polars'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
