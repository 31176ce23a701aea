"""Mutation testing: change the code at random places and see whether the tests notice."""
