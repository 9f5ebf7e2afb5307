"""As many passes on one device as on all ranks together, without a DataLoader: the loop of karpathy/nanoGPT."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.scripts import parts


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = parts.writer()

    def forward(self, tokens, labels):
        logits = self.inner(tokens)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1337 + dist.get_rank())
    tokens, _ = parts.texts().tensors
    net = DistributedDataParallel(Writer())
    optimizer = torch.optim.AdamW(net.parameters())
    passes = 4 // dist.get_world_size()
    for _ in range(100):
        for number in range(passes):
            net.require_backward_grad_sync = number == passes - 1
            chosen = torch.randint(len(tokens), (parts.batch(),))
            _, loss = net(tokens[chosen, :-1], tokens[chosen, 1:])
            (loss / passes).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
