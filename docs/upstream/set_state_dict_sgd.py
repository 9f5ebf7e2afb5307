"""What `get_state_dict` returned of plain SGD cannot be loaded: docs/upstream/set_state_dict_sgd.md."""

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
full = StateDictOptions(full_state_dict=True)
weights, state = get_state_dict(net, optimizer, options=full)
print(f"torch {torch.__version__}: saved {state}")
set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=state, options=full)
print("loaded")
