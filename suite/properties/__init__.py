"""The correctness checks: what must hold for any trainer, collective, split, evaluation and feed.

`trainer` has the checks on trainers (`CHECKS`, `judge`), which read what the ranks did (`observe`, `seen`) in a
generated case (`case`, `nets`); `functions` has those on the functions that trainers are built from. `tolerance`
derives every tolerance, and `suspects` names the known bug behind a wrong gradient. Everything but `case` and `answers`
needs torch, so it runs in workers and in tests, and the controller loads only these two.
"""
