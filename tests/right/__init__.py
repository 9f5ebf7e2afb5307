"""Unusual right trainers: whatever a check finds in one of them is a false alarm.

`RIGHT` has them by name, as a worker loads them. `python -m tests.right` puts every check to every one, with fresh
cases, and counts. Many are the base of a mutant in `tests.mutants`, which has one part of them wrong.
"""

from __future__ import annotations

_FILES = {
    "by_hand": "ByHand ScheduledBySamples CountsSteps WarmsUpFromZero ClipsPlainly WithReference AccumulatesPlainly "
    "ClipsByNorm ClipsByUnit TrainsVectorsOnly",
    "optimizers": "Lion LionWithoutDecay LBFGS LBFGSWithLineSearch SharpnessAware MuonInTurns Adafactor Preconditioned "
    "RMSpropWithMomentum AMSGrad TwoOptimizers LARS LAMB Lookahead",
    "copies": "Masters FlatMasters Averaged AveragedOnRank0 AverageInBuffers AdamMasters ShardedMasters NarrowMoments "
    "SwitchesToTheAverage StochasticWeightAveraging",
    "losses": "LearnedTemperature WeighsByLosses NormalisesByRunningLoss WeighsPlainly BalancesLoad MixesUp "
    "NoisyGradients",
    "exchanges": "AveragesParameters OuterOptimizer InHooks HooksPlainly InAsynchronousHooks StepsInBackward Wrapped "
    "AccumulatesWithoutSync HookOfDDP ZeroRedundancy Joins ShardedAdamW",
    "one_process": "ParameterServer ServesMomentum FlatViews ClipsSamples",
}

RIGHT = {name: f"tests.right.{file}:{name}" for file, names in _FILES.items() for name in names.split()}
