"""The tables, figures and claims of five papers beside what pipetrain measures and computes."""
