"""Check eight public training scripts as they are.

    python -m docs.evidence.public_scripts FOLDER

`FOLDER` has clones of the five repositories under their own names: examples (pytorch), nanoGPT, minimind,
pytorch-lightning, accelerate. Their data is written there and nothing is downloaded: random tokens, texts of random
words, random digits, and for accelerate a small BERT, data and a metric in folders that are named as on the hub.

Install the suite in the environment, not as an editable clone, whose own tests have deadlines; and torchmetrics,
lightning, transformers, datasets, evaluate, accelerate, hydra-core, boto3.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

LIMIT_S = 600
WORDS = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
METRIC = '''"""The share of right answers, in the place of GLUE's metrics."""

import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({name: datasets.Value("int64") for name in ("predictions", "references")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=kinds)

    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, predictions, references)) / len(references)}
'''


@dataclass(frozen=True)
class Public:
    """A script, by its clone, its folder in it, and how it is called."""

    name: str
    clone: str
    folder: str
    command: str
    batch: int | None
    on_cpu: bool = False  # whether it trains there as it is
    environment: dict[str, str] = field(default_factory=dict)


SCRIPTS = (
    Public(
        "ddp-tutorial-series", "examples", "distributed/ddp-tutorial-series",
        "multigpu_torchrun.py 100 1000 --batch_size {batch}", 64,
    ),
    Public(
        "minGPT-ddp", "examples", "distributed/minGPT-ddp/mingpt",
        "main.py data_config.path=data/input.txt data_config.block_size=32 gpt_config.n_layer=2 gpt_config.n_head=2 "
        "gpt_config.n_embd=64 trainer_config.batch_size={batch}", 16,
    ),
    Public(
        "nanoGPT", "nanoGPT", ".",
        "train.py config/train_shakespeare_char.py --batch_size={batch} --block_size=64 --n_layer=2 --n_head=2 "
        "--n_embd=64 --gradient_accumulation_steps=2 --eval_iters=2", 8,
    ),
    Public("imagenet", "examples", "imagenet", "main.py --dummy -b {batch} -j 0 --dist-url env:// --dist-backend gloo",
           2, on_cpu=True),
    Public(
        "minimind", "minimind", "trainer",
        "train_pretrain.py --batch_size {batch} --hidden_size 64 --num_hidden_layers 1 --max_seq_len 32 "
        "--num_workers 0 --accumulation_steps 2", 8,
    ),
    Public("Fabric", "pytorch-lightning", "examples/fabric/image_classifier", "train_fabric.py --batch-size {batch}",
           16, on_cpu=True),
    Public("accelerate", "accelerate", "examples", "nlp_example.py --cpu", None, on_cpu=True,
           environment={"HF_HUB_OFFLINE": "1"}),
    Public("FSDP2", "examples", "distributed/FSDP2", "example.py", None),
)  # fmt: skip


def make_data(folder: Path) -> None:
    """Write what the scripts read, wherever they look for it; ImageNet's and FSDP2's make theirs, minGPT's has its."""
    numbers, pick = np.random.default_rng(0), random.Random(0)
    tokens = folder / "nanoGPT/data/shakespeare_char"
    for name, count in (("train", 200_000), ("val", 20_000)):
        numbers.integers(0, 65, count, dtype=np.uint16).tofile(tokens / f"{name}.bin")
    texts = ({"text": " ".join(pick.choices(WORDS, k=pick.randint(2, 40)))} for _ in range(2000))
    _lines(folder / "minimind/dataset/pretrain_t2t_mini.jsonl", texts)
    digits = folder / "pytorch-lightning/Datasets/MNIST/raw"
    digits.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 2048), ("t10k", 512)):
        images = numbers.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = numbers.integers(0, 10, count, dtype=np.uint8)
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (digits / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (digits / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
    _make_hub(folder / "accelerate/examples", pick)


def _make_hub(folder: Path, pick: random.Random) -> None:
    """Write folders that nlp_example.py finds under the names that it asks the hub for."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    glue, bert, metric = (folder / name for name in ("nyu-mll/glue", "bert-base-cased", "glue"))
    for each in (glue / "mrpc", bert, metric):
        each.mkdir(parents=True, exist_ok=True)
    (metric / "glue.py").write_text(METRIC)
    files = list[str]()
    for split, count in (("train", 400), ("validation", 64), ("test", 64)):
        pairs = ([" ".join(pick.choices(WORDS, k=pick.randint(4, 20))) for _ in range(2)] for _ in range(count))
        rows = ({"sentence1": one, "sentence2": two, "label": at % 2, "idx": at} for at, (one, two) in enumerate(pairs))
        _lines(glue / "mrpc" / f"{split}.jsonl", rows)
        files.append(f"  - split: {split}\n    path: mrpc/{split}.jsonl\n")
    (glue / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{''.join(files)}---\n")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (bert / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(str(bert / "vocab.txt")).save_pretrained(bert)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    small = BertConfig(vocab_size=len(vocabulary), **sizes)
    BertForSequenceClassification(small).save_pretrained(bert)


def _lines(path: Path, rows: object) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # type: ignore[attr-defined]


def checked(folder: Path, script: Public) -> str:
    """Check a script; return its row: commit, red items, skipped items, seconds of wall time and of CPU time."""
    place = folder / script.clone
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=place, capture_output=True, text=True)
    pytest = [str(Path(sys.executable).parent / "pytest"), "-v", "--color=no"]
    told = [*pytest, "-m", "correctness", "--pyargs", "suite.checks"]
    told += ["--scaling-script", script.command, "-p", "no:cacheprovider"]
    told += ["--scaling-batch", str(script.batch)] if script.batch else []
    where, environment = place / script.folder, os.environ | script.environment
    before, begun = _cpu_s(), time.monotonic()
    run = subprocess.run(told, cwd=where, env=environment, timeout=LIMIT_S, stdout=subprocess.PIPE, text=True)
    wall_s, cpu_s = time.monotonic() - begun, _cpu_s() - before
    print(run.stdout, file=sys.stderr)
    outcomes = re.findall(r"-(\w+)\] (PASSED|FAILED|SKIPPED)", run.stdout)
    red, skipped = (", ".join(f"`{item}`" for item, is_ in outcomes if is_ == what) for what in ("FAILED", "SKIPPED"))
    return f"| {script.name} | {commit.stdout.strip()} | {red} | {skipped} | {wall_s:.0f} | {cpu_s:.0f} |"


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Make the data, check the scripts, print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="the name of one script")
    options = parser.parse_args()
    folder = options.folder.resolve()
    make_data(folder)
    names = ("torch", "lightning", "transformers", "datasets", "accelerate", "hydra-core")
    print(", ".join(f"{name} {version(name)}" for name in names), end="\n\n")
    print("| script | commit | red | skipped | wall s | CPU s |\n|---|---|---|---|---|---|")
    for script in SCRIPTS:
        if options.only in (None, script.name):
            print(checked(folder, script), flush=True)


if __name__ == "__main__":
    main()
