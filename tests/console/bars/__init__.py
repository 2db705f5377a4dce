"""Measure every bar of the console: `make bench-console`. Needs Chromium, and eight minutes.

Each module measures one part and gives a row for each bar: what is wanted, what was measured, and
whether it is met. Figures need a quiet machine; where a bar is a time, the processor's time is
told too, which a busy machine changes less. These are no tests: none asserts how long it took.
"""
