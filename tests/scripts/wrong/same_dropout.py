"""One seed after the model is made gives all ranks the same dropout masks.

Source: huggingface/transformers#31412, facebookresearch/fastMRI#123.
Red: random.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(parts.net(dropout=0.5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(42)
    parts.train(net, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
