"""The documents' networks and a language model: table name -> factory without arguments, imported on demand."""

from __future__ import annotations

MODELS: dict[str, str] = {
    "lenet": "reference.models.lenet:LeNet",
    "resnet18": "reference.models.resnet:resnet18",
    "gluon-resnet18": "reference.models.resnet:gluon_resnet18",
    "gpt-tiny": "reference.models.gpt:gpt_tiny",
    "gpt": "reference.models.gpt:gpt",
    "toy": "reference.models.toy:Toy",
}
