"""Formats of messages between stages: docs/messages.md defines them."""
