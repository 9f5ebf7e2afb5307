"""A compiled convolution fails on a minibatch without samples: docs/upstream/compiled_empty_convolution.md."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def weight_gradient_strides(samples: int) -> tuple[int, ...]:
    """Return the strides of the gradient of a channels_last weight."""
    X, weight, gradient = (torch.empty(size) for size in ((samples, 3, 6, 6), (2, 3, 3, 3), (samples, 2, 4, 4)))
    X, weight, gradient = (tensor.to(memory_format=torch.channels_last) for tensor in (X, weight, gradient))
    sides = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    results = torch.ops.aten.convolution_backward(gradient, X, weight, [2], *sides, [True, True, True])
    return results[1].stride()


print(f"torch {torch.__version__}")
for samples in (1, 0):
    real = weight_gradient_strides(samples)
    with FakeTensorMode():
        fake = weight_gradient_strides(samples)
    print(f"{samples} samples: strides of the weight's gradient {real}, fake {fake}")

conv = nn.Conv2d(3, 2, 3)
for samples in (1, 0):
    torch.compile(conv, dynamic=False)(torch.randn(samples, 3, 6, 6)).sum().backward()
    print(f"{samples} samples: compiled and done")
