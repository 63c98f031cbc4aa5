"""Any module as a layer chain: its forward is recorded on tensors without data, and cut where few tensors cross.

Trials of the layers find what stages could not compute; what a layer costs is estimated from shapes.

Imports the engine alone.
"""
