"""The correctness checks: what must hold for any trainer, collective, split, evaluation and feed.

`trainer` has the checks on trainers (`CHECKS`, `judge`), on what its ranks were seen to do (`observe`, `seen`) in a
generated case (`case`, `nets`); `functions` those on the functions that trainers are built from. Tolerances are derived
in `tolerance` and nowhere else; `suspects` names the known bug behind a wrong gradient. Everything but `case` needs
torch, so it runs in workers and in tests, and the controller loads only `case`.
"""
