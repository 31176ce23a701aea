"""Replay of one candidate's scheduler over the traffic, iteration by iteration."""
