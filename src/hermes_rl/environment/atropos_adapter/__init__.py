"""A real subclass of atroposlib's BaseEnv made of an environment of ours: its loops and command line, our groups.

Always true: a group that goes out is exactly `group_size` scored rollouts of one sequence each, with the logprobs they
were sampled with; any other is withheld and counted by its cause. The loops are atroposlib's own, and so is what they
lose: a group whose post fails, and the work on a group they cancel when the queue is full. `hermes-rl serve` loses
neither.

In a program: `atropos_environment(MyEnv).cli()`. Without one:
`python -m hermes_rl.environment.atropos_adapter ENV serve|process|evaluate …`.
"""
