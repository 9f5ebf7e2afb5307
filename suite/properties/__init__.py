"""The correctness checks: what must hold for any trainer, collective, split, evaluation and feed.

`trainer` has the checks on trainers (`CHECKS`, `judge`), which read what the ranks did (`observe`, `seen`) in a
generated case (`case`, `nets`); `compared` judges what the modules of a user's own model do; `functions` has the checks
on the functions that trainers are built from. `tolerance` derives every tolerance, `one_device` measures the noise of
bfloat16, and `suspects` names the known bug behind a wrong gradient. The controller loads only `case` and `answers`,
which need no torch. The rest runs in workers and in tests.
"""
