"""Adapts an environment to a subclass of atroposlib's BaseEnv: its loops and command line, our groups.

A group that is sent has exactly `group_size` scored rollouts of one sequence each, with their sampling logprobs; any
other is withheld and counted by cause. atroposlib's loops lose a group when its post fails, and cancel groups in
progress when the queue is full; `hermes-rl serve` does neither.

In a program: `atropos_environment(MyEnv).cli()`. On the command line:
`python -m hermes_rl.environment.atropos_adapter ENV serve|process|evaluate …`.
"""
