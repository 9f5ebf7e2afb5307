"""A stream is split over the loader's processes and not over the ranks.

Source: huggingface/datasets#5360, huggingface/datasets#3423.
Red: data.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.scripts import parts


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        yield from (row for number, row in enumerate(parts.samples()) if number % worker.num_workers == worker.id)


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Stream(), parts.batch(), num_workers=2)
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader)


if __name__ == "__main__":
    main()
