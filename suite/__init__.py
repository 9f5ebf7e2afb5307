"""A scaling regression suite for data-parallel training, run by pytest.

`plugin` and `options` are what pytest sees; `run` measures, in processes that `processes` starts; `verdict` judges;
`records` and `render` store and show the result. docs/how-it-works.md has the floor plan. Imports go in one direction,
and import-linter checks it (pyproject.toml, section importlinter).
"""
