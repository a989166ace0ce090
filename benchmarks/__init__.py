"""What `make bench` measures. One module per layer; a module with `run(report)` is one.

Figures are ratios first: two things measured in the same run, on the same bytes. The
absolute ones are there to give a feeling and differ from machine to machine.
"""
