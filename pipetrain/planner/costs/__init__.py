"""What stages, replicas and links of a pipeline cost on the devices of a topology."""
