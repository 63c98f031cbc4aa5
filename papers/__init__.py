"""The tables, figures and claims of nine papers next to pipetrain's measurements and computations."""
