"""The semantics of MXNet's Gluon on several devices, around any torch module.

    net = Net(module, devices)                              # net.initialize(ctx=devices)
    trainer = Trainer(net, lr=0.1)
    X_shards, y_shards = split_and_load(X, devices), split_and_load(y, devices)
    for replica, X_shard, y_shard in zip(net.replicas, X_shards, y_shards):
        loss(replica(X_shard), y_shard).sum().backward()
    trainer.step(batch_size=len(X))

Not covered: key-value stores on other machines, optimisers other than SGD, sparse gradients, splitting along an axis
other than the first, and ``grad_req='write'``: a second backward before the step adds to the first, as in torch.
"""

from __future__ import annotations

from reference.gluon.net import Net
from reference.gluon.parameter import DeferredInitializationError, Parameter
from reference.gluon.split import copyto, split_and_load
from reference.gluon.trainer import Trainer

__all__ = ["DeferredInitializationError", "Net", "Parameter", "Trainer", "copyto", "split_and_load"]
