"""The documents' networks, one per file: table name -> factory without arguments, imported on demand."""

from __future__ import annotations

MODELS: dict[str, str] = {
    "lenet": "reference.models.lenet:LeNet",
    "resnet18": "reference.models.resnet:resnet18",
    "gluon-resnet18": "reference.models.resnet:gluon_resnet18",
    "toy": "reference.models.toy:Toy",
}
