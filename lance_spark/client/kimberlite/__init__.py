"""The client side of Kimberlite: its dialect and its driver."""
