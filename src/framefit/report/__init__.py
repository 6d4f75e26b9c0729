"""How plans, runs and searches look, made from ``core`` objects only.

``terminal`` has tables for a console, ``pages`` what a browser shows, ``pictures`` runs window by window, ``files``
what other programs read; what they share lies beside them.
"""
