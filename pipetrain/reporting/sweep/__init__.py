"""The runs of a sweep as one table and figure."""
