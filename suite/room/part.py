"""The base class of everything that is read from a file."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen part of a file; unknown fields and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
