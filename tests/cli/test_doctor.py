# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import torch

from hybridspec import __version__
from hybridspec.cli import main
from hybridspec.models import embedded


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
        f"drafter      missing: {tmp_path / 'absent'}",
        f"cache {cache}",
        "some-pair/latency.json, 2 bytes",
    ):
        assert words in out


def test_doctor_finds_an_empty_cache_empty(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(tmp_path / "absent"))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith(f"cache {tmp_path / 'absent'}\n  empty\n")
