"""Cost of the stages, replicas and links of a pipeline on the devices of a topology."""
