"""Other engines that are measured beside ours, each where it is installed and left out with a line where it is not.

A peer is a file here: how to tell that it is there, how to start it with one model, how to ask it. `registry` lists them.
"""
