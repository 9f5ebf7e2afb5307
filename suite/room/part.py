"""The base class of everything that is read from a file, and its errors in words.

It is in the lowest room that needs it: a record keeps the conditions of a block (`suite.room.conditions`) as they are.
"""

from pydantic import BaseModel, ConfigDict, ValidationError


class Part(BaseModel):
    """A frozen part of a file; unknown fields and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def problem(error: ValidationError) -> str:
    """Return the first problem of a content: 'cells.0.outcome: Input should be ...'."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
