"""Plain-Ray clusters of several hosts on one machine: started by the commands that a person would type, stopped by pid.

`hosts` is what `Lab` uses. `keeper`, `hostinit` and `driver` run as processes of their own.
"""
