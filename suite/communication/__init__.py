"""What an exchange costs: the all_reduce sweep, its alpha-beta fit, and the scaling that is to be expected of it."""
