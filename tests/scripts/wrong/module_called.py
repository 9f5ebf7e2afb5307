"""The model inside of the wrapper is called, so that nothing is exchanged.

Source: jingyaogong/minimind#853, OpenTSLM/OpenTSLM#49.
Red: exchange, replicas, gradient.
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
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net.module, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
