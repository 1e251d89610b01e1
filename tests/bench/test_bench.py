"""The benchmarks: they measure what they say, and refuse to report what is wrong."""

import json
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from support import jobs

from prism.bench import decode, erasures, layer, measure, model, op, operators
from prism.bench.report import Claim
from prism.bench.retrieval import retrieval
from prism.bench.sharded import sharded
from prism.errors import InputError


def test_turns_are_shared_and_the_median_counts() -> None:
    seen: list[str] = []
    seconds = measure.in_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repeats=3)
    assert seen == ["a", "b"] * 4  # once to warm up
    assert measure.summarise([3.0, 1.0, 2.0]) == {"seconds": 2.0, "fastest": 1.0, "repeats": 3}
    assert all(len(times) == 3 for times in seconds.values())


def test_a_slow_job_is_not_repeated_for_ever() -> None:
    seconds = measure.in_turns({"slow": lambda: time.sleep(0.02), "fast": lambda: None}, repeats=50, patience=0.1)
    assert 1 <= len(seconds["slow"]) <= 10
    assert len(seconds["fast"]) == 50


def test_peak_memory_sees_what_a_job_holds_and_gives_back() -> None:
    small, large = measure.peak_memory(jobs.hold, [(8,), (64,)])
    assert 7 << 20 < small["hold"] < 12 << 20
    assert 63 << 20 < large["hold"] < 70 << 20


def test_a_process_that_dies_while_its_memory_is_measured_is_told() -> None:
    with pytest.raises(BrokenProcessPool):
        measure.peak_memory(jobs.die, [()])


def test_claims_know_their_limits() -> None:
    assert Claim(text="", measured=3.1, least=3).holds
    assert not Claim(text="", measured=2.9, least=3).holds
    assert Claim(text="", measured=1.5, most=1.6).holds
    assert not Claim(text="", measured=1.7, most=1.6).holds


def test_a_wrong_operator_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operators.ours
    monkeypatch.setattr(
        operators, "ours", lambda backend, *x: right(backend, *x) * (1.001 if backend == "chunk" else 1)
    )
    with pytest.raises(InputError, match=r"prism chunk, L=2 is wrong, so nothing was timed: output is off by 1.0e-03"):
        operators.check(("chunk",), 2)


def test_erasing_each_direction_is_timed_beside_one_direction_and_an_expanded_sequence() -> None:
    x = tuple(operators.Size(B=1, T=40, H=2, L=3, D=8).operands())
    each, expanded = erasures.erasure_claims(x, repeats=2)
    assert (each.most, expanded.least) == (1.6, 1.0)
    assert each.measured > 0
    assert expanded.measured > 0


def test_erasures_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "_each", erasures._first)
    with pytest.raises(InputError, match="so nothing was timed"):
        erasures.erasure_claims(tuple(operators.Size(B=1, T=40, H=2, L=2, D=8).operands()), repeats=1)


def test_bench_op_leaves_a_table_json_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    op.op(
        lengths=(64, 128), steps=(1, 2), systems=("chunk", "attention"), heads=2, size=16, repeats=2, memory=False,
        out=tmp_path / "run",
    )  # fmt: skip
    record = json.loads((tmp_path / "run.json").read_text())
    systems = {row["system"] for row in record["measurements"]}
    assert systems == {"prism chunk, L=1", "prism chunk, L=2", "PyTorch causal attention"}
    assert all(row["tokens_per_second"] > 0 for row in record["measurements"])
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.png"]
    assert "T=128" in capsys.readouterr().out


def test_bench_layer_prints_the_ratio_to_gated_deltanet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer.layer(
        lengths=(64,), mixers=("prism", "gated-deltanet"), dim=32, heads=2, repeats=1, memory=False, out=tmp_path / "x"
    )
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["ratios"][0]["most"] == 1.35
    assert "gated-deltanet" in capsys.readouterr().out


def test_benches_refuse_bad_sizes_and_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lengths must be at least 1, got 0"):
        op.op(lengths=(), out=tmp_path / "x")
    with pytest.raises(InputError, match="unknown mixer 'prsm': did you mean 'prism'"):
        layer.layer(mixers=("prsm",), out=tmp_path / "x")
    assert not list(tmp_path.iterdir())
    for wrong in ({"tokens": 0}, {"repeats": 0}, {"contexts": (8, 0)}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be at least 1, got 0"):
            decode.decode(**wrong, out=tmp_path / "x")
    for bench in (decode.decode, layer.layer, model.model):
        with pytest.raises(InputError, match="mixers is empty: name at least one"):
            bench(mixers=(), out=tmp_path / "x")
    for wrong in ({"items": 0}, {"dim": 0}, {"num_threads": 0}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be at least 1, got 0"):
            retrieval(**wrong)
    for sizes in ({"items": (0,)}, {"items": ()}, {"dim": 0}, {"negatives": 0}):
        with pytest.raises(InputError, match=f"{next(iter(sizes))} must be at least 1, got 0"):
            sharded(**sizes)


def test_benches_refuse_a_place_that_cannot_be_written_before_they_measure(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    for bench in (decode.decode, layer.layer, model.model, op.op):
        for out, why in (
            (Path(), "has no name"),
            (tmp_path / "folder", "is a folder"),
            (tmp_path / "file/x", "cannot"),
        ):
            with pytest.raises(InputError, match=why):
                bench(out=out)


def test_models_of_the_throughput_study_are_of_one_size() -> None:
    counts = {name: model.parameters(config) for name, config in model.models(model.STUDY, 128, 2, 4).items()}
    target = counts["prism"]
    assert all(abs(count - target) < 0.05 * target for count in counts.values()), counts


def test_bench_model_states_the_papers_ratios(tmp_path: Path) -> None:
    mixers = ("prism", "gated-deltanet", "attention", model.SERIAL)
    model.model(sizes=((64, 2),), mixers=mixers, dim=32, heads=2, repeats=1, memory=False, out=tmp_path / "m")
    record = json.loads((tmp_path / "m.json").read_text())
    assert {row["system"] for row in record["measurements"]} == set(mixers)
    assert any("174" in ratio["text"] for ratio in record["ratios"])
    assert any("16 %" in ratio["text"] for ratio in record["ratios"])


def test_of_one_token_at_a_time_the_tokens_of_the_timed_piece_count_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"seconds": 0.5, "fastest": 0.5, "repeats": 1, "peak_bytes": 7}
    monkeypatch.setattr(model, "measured", lambda jobs, cases, *rest, **given: [dict.fromkeys(cases[0][0], asked)] * 2)
    mixers = ("deltanet", model.SERIAL)
    model.model(sizes=((64, 2), (512, 2)), mixers=mixers, dim=32, heads=2, out=tmp_path / "m")
    rows = json.loads((tmp_path / "m.json").read_text())["measurements"]
    assert [(row["tokens"], row["peak_bytes"]) for row in rows] == [(128, 7), (64, None), (1024, 7), (256, None)]
    piece = model.jobs((model.SERIAL,), 32, 1, 2, 2, 64)[model.SERIAL].args[1]  # type: ignore[attr-defined]
    assert piece[:, 1:].numel() == 64


def test_bench_retrieval_says_that_its_times_are_of_all_threads_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("prism.bench.retrieval.compare", lambda *asked: [["product", *["1"] * 7]])
    retrieval(items=50, dim=4, queries=3)
    assert "processor time of all threads" in " ".join(capsys.readouterr().out.split())


def test_bench_decode_compares_contexts(tmp_path: Path) -> None:
    decode.decode(
        contexts=(8, 32), mixers=("prism", "attention"), dim=32, layers=1, tokens=4, repeats=1, out=tmp_path / "d"
    )
    record = json.loads((tmp_path / "d.json").read_text())
    systems = [row["system"] for row in record["measurements"]]
    assert systems == ["prism", "attention"] * 2 + [decode.OURS, decode.LLAMA] * 2 + [decode.MAPS]
    limits = {ratio["text"].partition(":")[0]: ratio["least"] for ratio in record["ratios"]}
    assert limits["prism"] == 0.95
    assert limits["prism / what its linear maps alone would allow"] == 0.5
    assert limits["prism / llama after 8, both in transformers"] == 1.5


def test_the_service_is_measured_in_process_and_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        pytest.importorskip(name, reason="the service needs it: pip install 'prism-sequence[serve]'")
    from prism.cli import main

    size = ["--items", "60", "--dim", "16", "--layers", "1", "--users", "5", "--clients", "2", "--histories", "3"]
    main(["bench", "serve", *size, "--seconds", "0.5", "--rate", "40"])
    said = capsys.readouterr().out
    assert "over HTTP, 2 clients, full speed" in said
    assert "20 users with 3 events before" in said
    assert "99th percentile, ms" in said
