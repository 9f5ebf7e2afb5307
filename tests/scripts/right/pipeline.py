"""Every rank trains a stage of its own, to which minibatches come in four parts."""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = [nn.Sequential(nn.Linear(parts.FEATURES, parts.FEATURES), nn.Tanh()) for _ in range(6)]
    net = nn.Sequential(*layers[6 * rank // ranks : 6 * (rank + 1) // ranks])
    stage = PipelineStage(net, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    X, _ = parts.samples().tensors
    rows = 4 * parts.batch()
    for step in range(100):
        chosen = X[rows * step % len(X) :][:rows]
        given = (chosen,) if rank == 0 else ()
        wanted = {"target": chosen.roll(1, 1)} if rank == ranks - 1 else {}
        optimizer.zero_grad()
        schedule.step(*given, **wanted)
        optimizer.step()


if __name__ == "__main__":
    main()
