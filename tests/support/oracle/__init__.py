"""Gradients worked out by hand in numpy: an oracle that shares no line with torch's autograd.

`layers` derives each layer's backward from its forward, `lenet` and `residual` put them together, `rounding` says how
far a floating-point evaluation may be from the exact value, and `differences` needs no derivation at all: it is the
difference quotient of the forward pass, with the error that this has.
"""
