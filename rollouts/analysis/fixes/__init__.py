"""Did a fix reduce the faults that it was made for? Fixed machines against those not yet fixed.

Nobody drew who was fixed, so this is no experiment: it is the comparison that leaves least to
mistake. A machine counts as fixed from its own fix on and as unfixed before it, so no time is
given to a fix that had not happened; both are compared at the same calendar time, within strata;
the machine is the unit, however many faults it has; and where machines were fixed because they
failed, they are compared with unfixed machines that had failed as often by then. A level is that
of one look.
"""
