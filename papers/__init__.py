"""The tables, figures and claims of five papers next to pipetrain's measurements and computations."""
