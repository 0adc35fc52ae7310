"""What a GPU makes of this project: training steps against its matrix rate, and long inputs.

`python -m benchmarks.device` measures the first CUDA device. Weights are random: time and memory do
not depend on them. Each part is a process of its own and prints its numbers as JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from filelock import FileLock
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from benchmarks.contest import in_process
from benchmarks.scanning import score_heads
from experiments.papers.kazemnejad2023.presets import PRESETS
from nope_interp.models.config import TransformerConfig
from nope_interp.models.marked import answers_cross_entropy
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.load import load_pretrained
from nope_interp.tasks.registry import Task, make_answer_task, make_task
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import optimize
from nope_interp.training.train import masked_loss

LENGTHS = (2048, 8192, 32_768)
# A language model of about 30 million parameters.
LANGUAGE = TransformerConfig(n_layers=9, d_model=512, n_heads=8, d_vocab=257, n_ctx=512)
_WARMING, _TIMED = 20, 60
# Timed parts take turns, also where parts are run side by side.
_TURN = FileLock(Path(tempfile.gettempdir()) / "nope-interp-device.lock")


def matrix_rate() -> dict[str, float]:
    """Products of 8,192 x 8,192 random numbers in bfloat16."""
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    seconds = []
    with _TURN:
        for _ in range(_TIMED):
            start = time.perf_counter()
            torch.matmul(a, b)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return {"tflops": 2 * 8192**3 / median(seconds[_WARMING:]) / 1e12}


def training(config: TransformerConfig, how: TrainingConfig, task: Task) -> dict[str, float]:
    """Steps of a training as users run it, batches and all, after those that warm up."""
    model = HookedTransformer(config).cuda()
    compiled = torch.compile(answers_cross_entropy) if how.compile else None
    began: list[float] = []

    def loss_at(step: int) -> Float[Tensor, ""]:
        if step == _WARMING:
            _TURN.acquire()
        began.append(time.perf_counter())
        return masked_loss(model, *_batch(task, how, step), cross_entropy=compiled)

    optimize(model, how, loss_at, header={}, title="", show_progress=False)
    _TURN.release()
    peak = torch.cuda.max_memory_allocated()
    # Each step ends with its loss read, so that it is done when the next begins.
    timed = range(_WARMING, how.steps - 1)
    seconds = began[-1] - began[_WARMING]
    batches = [_batch(task, how, step) for step in timed]
    return {
        "milliseconds": 1e3 * seconds / len(timed),
        "tokens_per_second": sum(tokens.numel() for tokens, _ in batches) / seconds,
        "tflops": _operations(model, batches) / seconds / 1e12,
        "gigabytes": peak / 1e9,
    }


def _batch(task: Task, how: TrainingConfig, step: int) -> tuple[Tensor, Tensor]:
    """Of examples of one length, which differs from step to step."""
    return task.batch(how.batch_size, how.seq_len, torch.Generator().manual_seed(step))


def _operations(model: HookedTransformer, batches: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Additions and multiplications of matrix products, there and back; what is compiled hides
    them."""
    with FlopCounterMode(display=False) as counted:
        for tokens, predicted in batches:
            masked_loss(model, tokens, predicted).backward()
    return counted.get_total_flops()


def paper_step(task_name: str, compile: bool) -> dict[str, float]:
    """Of `reproduce kazemnejad2023 --preset paper`."""
    sizes, task = PRESETS["paper"].sizes, make_answer_task(task_name)
    length = max(task.n_tokens(n) for n in task.training_lengths)
    config = TransformerConfig(**sizes.model, d_vocab=task.d_vocab, n_ctx=length)
    how = TrainingConfig(
        **sizes.training, seq_len=length, steps=_WARMING + _TIMED, warmup=1, compile=compile
    )
    return training(config, how, task) | {"length": length}


def language_step(compile: bool) -> dict[str, float]:
    """Of a language model on bytes."""
    how = TrainingConfig(
        batch_size=64,
        seq_len=LANGUAGE.n_ctx,
        steps=_WARMING + _TIMED,
        warmup=1,
        learning_rate=1e-3,
        precision="bfloat16",
        compile=compile,
    )
    return training(LANGUAGE, how, make_task("text"))


def scan(length: int) -> dict[str, float]:
    """All heads of Gemma 3 270M's layers, with random weights, scored on one text."""
    config = Gemma3TextConfig(
        vocab_size=1000,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32_768,
        sliding_window=512,
    )
    with tempfile.TemporaryDirectory() as folder:
        Gemma3ForCausalLM(config).save_pretrained(folder)
        model = load_pretrained(folder, device="cuda").model
    tokens = torch.randint(4, 1000, (1, length), generator=torch.Generator().manual_seed(0))

    def read(tokens: Tensor) -> None:
        score_heads(model, tokens, in_blocks=True)
        torch.cuda.synchronize()

    read(tokens[:, :64])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with _TURN:
        start = time.perf_counter()
        read(tokens)
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "megabytes": (torch.cuda.max_memory_allocated() - before) / 2**20,
    }


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "matrices": matrix_rate,
    **{
        f"{kind}{', compiled' if compile else ''}": partial(run, compile=compile)
        for compile in (False, True)
        for kind, run in (
            ("paper step on copy-rsc", partial(paper_step, "copy-rsc")),
            ("paper step on pcfg", partial(paper_step, "pcfg")),
            ("language step", language_step),
        )
    },
    **{f"heads at {length} tokens": partial(scan, length) for length in LENGTHS},
}


def main() -> None:
    print(torch.cuda.get_device_name())
    for part in PARTS:
        print(part, in_process("benchmarks.device", part), flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("benchmarks.device measures a CUDA device, and there is none here.")
    if len(sys.argv) == 1:
        main()
    else:
        print(json.dumps(PARTS[sys.argv[1]]()))
