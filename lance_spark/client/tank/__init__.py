"""The client side of TANK: its dialect and its driver."""
