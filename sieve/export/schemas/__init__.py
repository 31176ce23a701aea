"""Schemas of the manifest fields that are used, one system a file, each naming its version.

Written from the systems' documentation. They refuse unknown fields, so that a misspelt one is found
here and not by a cluster that drops it.
"""
