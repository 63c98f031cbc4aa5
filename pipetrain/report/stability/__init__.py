"""Figures and tables of the stability theory."""
