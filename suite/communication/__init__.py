"""What an exchange costs: the alpha-beta fit of a sweep, and the scaling that is to be expected of it."""
