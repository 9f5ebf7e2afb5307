"""Four distributed scripts of pytorch/examples that do not train as they seem to: docs/upstream/pytorch_examples.md.

torchrun --nproc-per-node=2 docs/upstream/pytorch_examples.py CLONE
"""

import importlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import random_split

clone = Path(sys.argv[1])
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")


def gathered(value: object) -> list[object]:
    """Return what every rank has."""
    values: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def show(*line: object) -> None:
    """Print on rank 0."""
    if rank == 0:
        print(*line, flush=True)


# distributed/ddp-tutorial-series: the loss, and the data.
sys.path.insert(0, str(clone / "distributed/ddp-tutorial-series"))
data = importlib.import_module("datautils").MyTrainDataset(2048)
net = nn.Linear(20, 1)
source, targets = (torch.stack(column) for column in zip(*data.data[:32], strict=True))
nn.functional.cross_entropy(net(source), targets).backward()
show("ddp-tutorial-series: the largest gradient:", float(net.weight.grad.abs().max()))
show("ddp-tutorial-series: the first number of the data, by rank:", gathered(float(data.data[0][0][0])))

# distributed/minGPT-ddp: the split, of as many characters as main.py has.
train, test = random_split(range(55_000), [49_500, 5_500])
held_out, trained = gathered(list(test.indices))[0], gathered(list(train.indices))[1]
show("minGPT-ddp: test rows of rank 0 that rank 1 trains on:", len({*held_out} & {*trained}), "of", len(held_out))

# distributed/FSDP2: what reset_parameters leaves as to_empty made it, and the data.
sys.path.insert(0, str(clone / "distributed/FSDP2"))
model = importlib.import_module("model")
with torch.device("meta"):
    transformer = model.Transformer(model.ModelArgs(n_layers=10, vocab_size=1024, max_seq_len=64))
transformer.to_empty(device="cpu")
with torch.no_grad():
    for parameter in transformer.parameters():
        parameter.fill_(torch.nan)  # in the place of whatever the memory has
transformer.reset_parameters()
left = [name for name, parameter in transformer.named_parameters() if parameter.isnan().any()]
show("FSDP2: parameters that are not initialised:", len(left), "of", len(list(transformer.parameters())))
torch.manual_seed(0)
show("FSDP2: the first tokens, by rank:", gathered(torch.randint(0, 1024, (4,)).tolist()))

# imagenet on CPUs: the model that train() is given.
torch.seed()
sys.path.insert(0, str(clone / "imagenet"))
main = importlib.import_module("main")


def train(loader: object, given: nn.Module, *rest: object) -> None:
    """Show the model in the place of training it, and end."""
    first = gathered(float(next(given.parameters()).detach().flatten()[0]))
    show("imagenet: the model is a", type(given).__name__, "and its first weight is, by rank:", first)
    dist.destroy_process_group()
    os._exit(0)


main.train = train
dist.init_process_group = lambda **_: None  # there is one already
sys.argv[1:] = ["--dummy", "-b", "2", "-j", "0", "--dist-url", "env://", "--dist-backend", "gloo"]
main.main()
