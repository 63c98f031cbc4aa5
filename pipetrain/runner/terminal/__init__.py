"""What commands have in common: arguments, error lines, tables and the look of figures."""
