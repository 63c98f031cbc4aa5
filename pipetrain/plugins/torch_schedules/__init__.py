"""Stages run by torch.distributed.pipelining, as a baseline."""
