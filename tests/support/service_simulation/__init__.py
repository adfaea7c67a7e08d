"""Drives the real service of the archiver in virtual time against a cluster, a store and processes that fail.

One operating-system thread. Every thread of the archiver is a greenlet; a seed decides who runs next.
"""
