"""The client side of RustLog: its dialect and its driver."""
