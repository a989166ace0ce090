"""The command line: one module per command, loaded when it is called.

`main` starts it and is all that can be imported without click; `group` has the table of
commands; `show` is what `inspect` prints.
"""
