# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Promise: a mutated checkpoint is refused in a sentence, or means what Transformers makes of it.

Every kind of mutation is drawn SEEDS times, over all valid checkpoints in turn; a failure names
kind, seed and checkpoint. A target that loads must give Transformers' logits on the same files. A
drafter that loads must be the one that its configuration describes, and leave the text as it is.
"""

import re
import resource
import signal
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load, save

from hybridspec import LLM, HybridSpecError, SamplingParams
from tests.decoding import logits_of, read_text
from tests.mutations.checkpoint import DRAFTERS, INDEX, TARGETS, Checkpoint, sound
from tests.mutations.kinds import KINDS, mutate
from tests.tiny import VOCAB
from tests.tolerances import LOGITS

SEEDS = 60
SECONDS = 20
"""for one checkpoint of 60 KB; a few milliseconds are usual"""
ROOM = 512 << 20
"""bytes that loading it may reserve"""
LONGEST = 300
"""characters of a sentence, beside the directory"""
TOKENS = torch.randint(VOCAB, (12,), generator=torch.Generator().manual_seed(3))
PROMPT, FEW = "ab é", SamplingParams(max_new_tokens=12)


class Fuzz:
    """The valid checkpoints, and the verdict on mutations of them."""

    def __init__(self, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.directory, self.caplog = directory, caplog
        self.sound = sound(directory / "sound")
        self.target = directory / "sound" / "plain"
        self.text = LLM(self.target, policy="plain").generate(PROMPT, FEW).token_ids

    def verdict(self, kind: str, seed: int) -> str:
        """Empty, or what is wrong with how a mutation ended."""
        name = [*TARGETS, *DRAFTERS][seed % (len(TARGETS) + len(DRAFTERS))]
        directory = self.directory / f"{kind} {seed}".replace(" ", "-")
        mutate(kind, seed, self.sound[name]).write(directory)
        judge = self.of_target if name in TARGETS else self.of_drafter
        try:
            wrong = judge(directory)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of tokenizers or safetensors is no Exception
            wrong = f"{type(error).__name__}: {error}"
        wrong = wrong or self.of_log()
        return f"{kind} {seed}, {name}: {' '.join(wrong.split())[:400]}" if wrong else ""

    def of_target(self, directory: Path) -> str:
        """What is wrong with a mutated target."""
        try:
            with watched(), torch.inference_mode():
                llm = LLM(directory, policy="plain")
                target = llm.pair.target
                rows = min(len(TOKENS), target.config.max_position_embeddings)
                llm.generate(
                    PROMPT if rows > len(PROMPT) else "a", SamplingParams(max_new_tokens=2)
                )
                every = replace(target, taps=(len(target.layers) - 1,))
                found = logits_of(every, read_text(every, TOKENS[:rows]))
        except HybridSpecError as error:
            return self.of_sentence(str(error), directory)
        want = logits_of_theirs(directory, rows)
        bound = LOGITS * max(1.0, float(want.abs().max()))
        apart = float((found - want).abs().max())
        return "" if apart < bound else f"logits {apart} from Transformers'"

    def of_drafter(self, directory: Path) -> str:
        """What is wrong with a mutated drafter."""
        try:
            with watched():
                llm = LLM(self.target, draft_model=directory, policy="fixed")
                text = llm.generate(PROMPT, FEW).token_ids
        except HybridSpecError as error:
            return self.of_sentence(str(error), directory)
        ignored = fields_not_honoured(llm, Checkpoint.read(directory).json("config.json"))
        if ignored:
            return f"loaded without {', '.join(ignored)}"
        return "" if text == self.text else "the text is not that of plain decoding"

    def of_sentence(self, sentence: str, directory: Path) -> str:
        """What is wrong with a refusal."""
        beside = sentence.replace(str(directory), "").replace(str(self.target), "")
        if beside == sentence:
            return f"names no file: {sentence}"
        if len(beside) > LONGEST or "\n" in sentence or not sentence.endswith("."):
            return f"is no sentence: {sentence}"
        return ""

    def of_log(self) -> str:
        """What is wrong with the warnings that were logged."""
        said = [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        is_calm = len(said) < 4 and all(len(sentence) < LONGEST for sentence in said)
        return "" if is_calm else f"warns {len(said)} times: {said[0]}"


@contextmanager
def watched():
    """Within it: no hang, no Python warning, and no more memory than a tiny checkpoint needs."""

    def too_long(*_):
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, limits[1]))
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(action="error"):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def logits_of_theirs(directory: Path, rows: int) -> torch.Tensor:
    """Transformers' logits on the same files; if it does not read them, on those of `respelled`."""
    try:
        return _logits(directory, rows)
    except Exception:  # theirs are of many kinds, and the second attempt must not raise
        return _logits(respelled(Checkpoint.read(directory)).write(directory / "respelled"), rows)


def _logits(directory: Path, rows: int) -> torch.Tensor:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # of what it invents, the loading info tells
    with warnings.catch_warnings(action="ignore"):
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True
        )
    if info["missing_keys"] or info["mismatched_keys"]:
        raise ValueError(f"Transformers invents {info}")
    with torch.no_grad(), mock.patch("torch.topk", first_of_equals):
        return model.eval()(TOKENS[None, :rows], use_cache=False).logits[0]


def first_of_equals(x, k, dim=-1, **_):
    """torch.topk, which leaves open which of equal experts it takes: zeroed routers have them."""
    values, ids = torch.sort(x, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), ids.narrow(dim, 0, k)))


THEIR_NAMES = (
    (re.compile(r"^language_model\.model\."), "model.language_model."),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"(\.experts\.(gate_up|down)_proj)\.weight$"), r"\1"),
)


def respelled(it: Checkpoint) -> Checkpoint:
    """The same model in words that Transformers reads: it is stricter where nothing depends on it.

    It wants floats where a rate is written as a whole number, no null, `metadata` in the index,
    and sound values in fields that do not describe the model; and it does not know MLX's prefix,
    nor fused experts called `.weight`.
    """
    found = it.copy()
    found.put_json("config.json", _respelled_fields(it.json("config.json")))
    for file in it.weights():
        tensors = load(it.files[file])
        found.files[file] = save({_their_name(name): x for name, x in tensors.items()})
    if INDEX in it.files:
        listed = it.json(INDEX)["weight_map"]
        renamed = {_their_name(name): file for name, file in listed.items()}
        found.put_json(INDEX, {"metadata": {}, "weight_map": renamed})
    return found


def _their_name(name: str) -> str:
    for pattern, theirs in THEIR_NAMES:
        name = pattern.sub(theirs, name)
    return name


def _respelled_fields(fields: dict) -> dict:
    rates = ("rms_norm_eps", "rope_theta", "partial_rotary_factor")
    return {
        name: _respelled_fields(value)
        if isinstance(value, dict)
        else float(value)
        if name in rates
        else value
        for name, value in fields.items()
        if value is not None
        and name not in ("architectures", "dtype")
        and (name != "intermediate_size" or isinstance(value, int))  # of no layer, if it was read
    }


def fields_not_honoured(llm: LLM, config: dict) -> list[str]:
    """Fields of a drafter's configuration that it does not have the values of."""
    found = llm.pair.drafter.config
    stated = config | (config.get("rope_parameters") or {}) | (config.get("dflash_config") or {})
    return [
        name
        for name in found.__dataclass_fields__
        if stated.get(name) is not None and getattr(found, name) != _as_read(stated[name])
    ]


def _as_read(value):
    """Lists become tuples; of a whole number in place of a rate, float keeps the nearest."""
    if isinstance(value, int) and abs(value) > 2**53:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


@pytest.fixture
def fuzz(tmp_path, caplog):
    return Fuzz(tmp_path, caplog)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutation_is_refused_in_a_sentence_or_read_as_transformers_reads_it(fuzz, kind):
    wrong = [fuzz.verdict(kind, seed) for seed in range(SEEDS)]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("name", [*TARGETS, *DRAFTERS])
def test_what_is_mutated_is_sound(fuzz, name):
    """Or the mutations would be refused for what they have in common."""
    directory = fuzz.directory / "sound" / name
    judge = fuzz.of_target if name in TARGETS else fuzz.of_drafter
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz, "of_sentence", lambda sentence, _: f"refused: {sentence}")
        assert judge(directory) == ""
