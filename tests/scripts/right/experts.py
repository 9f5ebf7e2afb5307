"""Every rank has an expert of its own, to which an all_to_all sends rows of all ranks."""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


class Routed(nn.Module):
    def __init__(self, expert):
        super().__init__()
        self.before, self.after = nn.Linear(parts.FEATURES, 8), nn.Linear(8, parts.CLASSES)
        self.expert = expert

    def forward(self, X):
        sent = self.before(X).tanh()
        counts = [len(part) for part in sent.tensor_split(dist.get_world_size())]
        here = all_to_all_single_autograd(sent, counts, counts, dist.group.WORLD)
        return self.after(all_to_all_single_autograd(self.expert(here).tanh(), counts, counts, dist.group.WORLD))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    expert = nn.Linear(8, 8)
    torch.manual_seed(0)
    net = Routed(expert)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["expert.weight", "expert.bias"])
    sampler = DistributedSampler(parts.samples())
    loader = DataLoader(parts.samples(), parts.batch(), sampler=sampler)
    parts.train(DistributedDataParallel(net), torch.optim.AdamW(net.parameters()), loader, sampler)


if __name__ == "__main__":
    main()
