"""One file per host system that txl-ts plugs into.

An adapter imports the core, the core never imports an adapter, and adapters do not know each other.
"""
