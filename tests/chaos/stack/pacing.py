"""How fast a run goes, so that its last step comes when the chaos is over and not before: decided, without a clock.

Always true: the fewer steps are left for the time, the longer a sandbox takes; when no time is left, none waits.
"""

SECONDS_A_STEP = 5.0
# Groups in flight make so many steps at a time.
STEPS_AT_ONCE = 2
SPARE = 8
QUICK, SLOWEST = 0.1, 40.0
# While it is measured how soon another group comes in, none takes longer than that.
MEASURED = 4.0


def steps_for(minutes: float) -> int:
    """How many steps a run of this length is to take."""
    return SPARE + round(minutes * 60 / SECONDS_A_STEP)


def paced(seconds_left: float, steps_left: int, *, recovering: bool = False) -> float:
    """How long a sandbox is to take to count, in seconds. `recovering`: a fault is over, and the next group awaited."""
    if steps_left <= SPARE:
        # What is still to be struck may come late, and is waited for.
        return MEASURED if recovering and steps_left > SPARE // 2 else SLOWEST
    each = max(0.0, seconds_left) / (steps_left - SPARE)
    return min(MEASURED if recovering else SLOWEST, max(1.0, each * STEPS_AT_ONCE))
