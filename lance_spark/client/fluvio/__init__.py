"""The client side of Fluvio: its dialect and its driver."""
