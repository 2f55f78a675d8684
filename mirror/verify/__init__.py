"""Prove that this server trains, or say why it does not."""
