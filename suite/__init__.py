"""A scaling regression suite for data-parallel training, run by pytest.

Rooms, from the outside in: `plugin` and `options` are the face pytest sees; `campaign` measures; `pool`, `launch` and
`worker` are the processes it measures with; `verdict` and `metrics` turn samples into an answer; `record`, `baselines`
and `render` keep and show it. Imports run one way only, and the gate enforces it (see pyproject, section importlinter).
"""
