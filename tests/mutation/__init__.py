"""`make mutants`: draw mutants of the code by lot, and count those that the tests notice.

`mutants` makes them, but for those of `equivalents`; `reach` and `reach_plugin` find which tests
reach their lines; `copy` tests one in a copy of the tree by a `runner`; `__main__` a sample.
"""
