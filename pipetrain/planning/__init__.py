"""Pipelines planned and predicted from measured times: profiles, costs, search, `partition=auto` and `partition=file`.

Imports the engine, the loader and the runner, but not the reporting.
"""
