"""Any module as a layer chain: its forward is recorded on tensors without data, and cut where few tensors cross.

What stages could not compute is found by trials of the layers.

Imports the engine alone.
"""
