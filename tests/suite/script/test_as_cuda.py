"""The CPU as a script's GPU, where a class of torch's is replaced."""

from __future__ import annotations

import torch

from suite.script.as_cuda import class_on_cpu


def test_a_generator_for_a_gpu_is_made_on_the_cpu() -> None:
    """A number stands for a GPU as well."""
    kind = class_on_cpu(torch.Generator)
    assert [kind(*where).device.type for where in ((), ("cuda:1",), (0,))] == ["cpu"] * 3
    assert kind(device="cuda").manual_seed(3).initial_seed() == 3


def test_the_class_of_generators_stays_a_class() -> None:
    """Modules that are imported later have it in their annotations, and ask what is an instance of it."""
    kind = class_on_cpu(torch.Generator)
    assert (kind | None) is not None
    assert isinstance(torch.default_generator, kind)
    assert isinstance(kind(), torch.Generator)
    assert not isinstance(torch.zeros(1), kind)
