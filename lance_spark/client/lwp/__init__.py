"""The client of LWP servers: its dialect, and everything that users call."""
