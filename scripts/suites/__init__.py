"""The gate and the long suites: what each depends on, when it last passed, and how they run side by side."""
