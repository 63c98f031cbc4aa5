"""Any module as a layer chain: its forward is recorded on tensors without data, and cut where few tensors cross.

Imports the engine alone.
"""
