# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec import __version__
from hybridspec.cli import main
from hybridspec.engine.loading import Checkpoint
from hybridspec.models import embedded
from hybridspec.models.reading import Widened


def test_doctor_names_versions_device_operations_pair_and_cache(capsys, monkeypatch, tmp_path):
    cache = tmp_path / "cache"
    (cache / "some-pair").mkdir(parents=True)
    (cache / "some-pair" / "latency.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(cache))
    monkeypatch.setattr(embedded, "DRAFTER", tmp_path / "absent")
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in (
        f"hybridspec   {__version__}",
        f"torch        {torch.__version__}",
        f"{torch.get_num_threads()} threads",
        "in PyTorch, on any device: accept,",
        "in Triton, on CUDA: accept, acceptance, ",
        f"drafter      missing: {tmp_path / 'absent'}",
        f"cache {cache}",
        "some-pair/latency.json, 2 bytes",
    ):
        assert words in out


def test_doctor_finds_an_empty_cache_empty(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(tmp_path / "absent"))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith(f"cache {tmp_path / 'absent'}\n  empty\n")


def test_doctor_says_what_is_wrong_with_a_cache(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    folders = {str(tmp_path / "file"): "no folder", "/x" + "y" * 5000: "cannot be read"}
    for folder, words in folders.items():
        monkeypatch.setenv("HYBRIDSPEC_CACHE", folder)
        assert main(["doctor"]) == 0
        assert words in capsys.readouterr().out.splitlines()[-1]


def table(out):
    """Rows under the heading of memory, by name."""
    rows = out.partition("\nmemory for ")[2].splitlines()[1:]
    return {row[2:20].strip(): row[20:].strip() for row in rows}


def test_doctor_tells_what_a_pair_takes_without_loading_it(capsys, monkeypatch, tiny_pair):
    target, draft = map(str, tiny_pair)
    monkeypatch.setattr(Widened, "__call__", None)
    given = ["--model", target, "--draft-model", draft, "--max-context", "300", "--device", "cpu"]
    assert main(["doctor", *given]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "memory for 300 positions on cpu, estimated; nothing is loaded" in out
    rows = table(out)
    for name in ("target weights", "drafter weights", "keys and values", "GDN states", "workspace"):
        assert rows[name].endswith("GiB")
    assert rows["longest that fits"] == "513 positions"


def test_a_model_alone_is_asked_about_all_its_positions(capsys, tiny_pair):
    assert main(["doctor", "--model", str(tiny_pair[0]), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "memory for 513 positions" in out
    assert table(out)["drafter weights"] == "0.00 GiB"


def test_a_pair_that_does_not_fit_ends_in_one_sentence_and_code_2(capsys, monkeypatch, tiny_pair):
    target = str(tiny_pair[0])
    found = Checkpoint.found(target, None, needs_drafter=False)
    free = found.memory("exact", torch.device("cpu")).needed(240)
    monkeypatch.setattr("hybridspec.engine.memory.free_bytes", lambda device: free)
    asked = ["doctor", "--model", target, "--device", "cpu", "--max-context"]
    assert main([*asked, "500"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("hybridspec: 500 positions need ")
    assert err.endswith(" of 240 positions or less.\n")
    assert err.count("\n") == 1
    assert table(out)["longest that fits"] == "240 positions"
    assert main([*asked, "240"]) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-context", "0"], ["max_context", "at least 1, got 0"]),
        (["--max-context", "3000"], ["max_context 3000", "up to 2049"]),
        (["--max-context", "x"], ["--max-context", "'x'"]),
        (["--model", "absent"], ["model absent does not exist"]),
        (["--model", ""], ["--model is empty"]),
        (["--device", "tpu"], ["'tpu'", "auto, cpu, cuda"]),
    ],
)
def test_bad_options_of_doctor_are_named(capsys, arguments, named):
    assert main(["doctor", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for words in named:
        assert words in err
